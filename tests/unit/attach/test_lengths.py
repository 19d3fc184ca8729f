"""Documents and their lengths, against hand counts."""

from __future__ import annotations

import pytest
import torch

from resihp_attach.lengths import NOTHING, Work, of_call, of_lengths

MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
SQUARES = 9 + 4


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"cu_seqlens": torch.tensor([0, 3, 5])}, Work(5, SQUARES, "cu_seqlens")),
        ({"attention_mask": MASK, "input_ids": torch.zeros(2, 4, dtype=torch.long)}, Work(5, SQUARES, "mask")),
        ({"attention_mask": torch.tensor([[1, 1, 1, 2, 2, 0]])}, Work(5, SQUARES, "mask")),  # segment ids
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1]])}, Work(5, SQUARES, "positions")),
        (
            {"position_ids": torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]), "attention_mask": MASK},
            Work(5, SQUARES, "positions"),
        ),
        ({"input_ids": torch.zeros(2, 4, dtype=torch.long)}, Work(8, 32, "shape")),
    ],
)
def test_batches(batch: dict[str, torch.Tensor], expected: Work) -> None:
    assert of_call((), batch) == expected
    assert of_call((batch,), {}) == expected


def test_a_four_dimensional_mask_counts_visible_pairs() -> None:
    n = 4
    hidden = torch.ones(1, 1, n, n, dtype=torch.bool).triu(1)  # one document of 4 tokens
    assert of_call((), {"attention_mask": hidden}) == Work(4, 16, "mask")
    two = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2)).bool().tril()
    assert of_call((), {"attention_mask": ~two.reshape(1, 1, n, n)}) == Work(4, 8, "mask")


def test_images_are_rows_without_squares() -> None:
    assert of_call((torch.zeros(5, 3, 8, 8),), {}) == Work(5, 0, "rows")


def test_nothing_known() -> None:
    assert of_call((object(),), {"flag": True}) == NOTHING


def test_declared() -> None:
    assert of_lengths([3, 2]) == Work(5, SQUARES, "declared")


def test_other_devices_are_not_read() -> None:
    batch = {"attention_mask": MASK.to("meta"), "input_ids": torch.zeros(2, 4, dtype=torch.long, device="meta")}
    assert of_call((), batch) == Work(8, 32, "shape")

"""All-reduce and all-gather in one step: what a rank makes of what the others sent."""

from __future__ import annotations

import math

import pytest
import torch

from resihp_trainer.comm.direct import LIMIT_BYTES, Followed, is_small, reduce_into, spread_into
from resihp_trainer.comm.port import ReduceOp


def received_by(own: int, parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.view(-1) for rank, part in enumerate(parts) if rank != own])


@pytest.mark.parametrize("members", [2, 3, 5, 8])
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_every_member_comes_to_the_same_bits(members: int, op: ReduceOp) -> None:
    generator = torch.Generator().manual_seed(members)
    parts = [torch.randn(7, 3, generator=generator) * 10.0**rank for rank in range(members)]
    results = []
    for own in range(members):
        mine = parts[own].clone()
        reduce_into(mine, received_by(own, parts), own, op)
        results.append(mine)
    assert all(torch.equal(result, results[0]) for result in results)
    stacked = torch.stack(parts).double()
    expected = {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[op]
    assert torch.allclose(results[0].double(), expected, rtol=1e-5)


def test_nothing_but_numbers_survives_no_better_than_in_a_ring() -> None:
    mine = torch.tensor([1.0, math.inf, 2.0])
    reduce_into(mine, torch.tensor([math.nan, -math.inf, 1.0]), 0, "sum")
    assert torch.isnan(mine).tolist() == [True, True, False]


def test_an_all_gather_keeps_the_order_of_the_ranks() -> None:
    parts = [torch.full((2, 2), float(rank)) for rank in range(4)]
    outputs = [torch.zeros(2, 2) for _ in parts]
    spread_into(outputs, parts[2], received_by(2, parts), 2)
    assert [output[0, 0].item() for output in outputs] == [0.0, 1.0, 2.0, 3.0]


def test_large_and_empty_tensors_go_the_usual_way() -> None:
    elements = LIMIT_BYTES // 4
    assert is_small(torch.empty(elements), 2)
    assert not is_small(torch.empty(elements), 3)
    assert not is_small(torch.empty(0), 3)


class Exchange:
    """A running operation that is done after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.waited = looks, 0

    def wait(self) -> None:
        self.waited += 1

    def is_done(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_what_follows_is_done_once() -> None:
    done: list[str] = []
    exchange = Exchange(looks=1)
    pending = Followed(exchange, lambda: done.append("reduced"))
    assert not pending.is_done()
    assert done == []
    assert pending.is_done()
    pending.wait()
    assert done == ["reduced"]
    assert exchange.waited == 2

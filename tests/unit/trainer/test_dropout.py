"""Dropout by counter: a pure function of seed, document, position and place; as random as it must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resihp_trainer.model import MicroBatch
from resihp_trainer.model.dropout import EMBEDDING_SITE, Dropout, layer_sites

WIDTH = 64


def packed(*documents: tuple[int, int]) -> MicroBatch:
    """(id, length) of each document."""
    return MicroBatch.of([np.zeros(n + 1, np.uint8) for _, n in documents], [i for i, _ in documents])


def test_a_token_is_treated_alike_wherever_it_is_packed() -> None:
    drop = Dropout(0.3, seed=5)
    together = drop.kept(packed((7, 10), (9, 4)), 3, WIDTH)
    assert torch.equal(together[10:], drop.kept(packed((9, 4)), 3, WIDTH))
    assert torch.equal(together[:10], drop.kept(packed((1, 2), (7, 10)), 3, WIDTH)[2:])


def test_masks_differ_between_seeds_documents_positions_places_and_neighbours() -> None:
    batch = packed((1 << 20, 32))
    first = Dropout(0.5, seed=1).kept(batch, 3, WIDTH)
    others = [
        Dropout(0.5, seed=2).kept(batch, 3, WIDTH),
        Dropout(0.5, seed=1).kept(packed((1 + (1 << 20), 32)), 3, WIDTH),
        Dropout(0.5, seed=1).kept(packed((2 << 20, 32)), 3, WIDTH),  # the same document of the next iteration
        Dropout(0.5, seed=1).kept(batch, 4, WIDTH),
        first.roll(1, 0),
        first.roll(1, 1),
    ]
    for other in others:  # 2048 independent coins agree in half of the cases, standard deviation 1.1 %
        assert abs(float((first == other).double().mean()) - 0.5) < 0.06


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_rate_holds_in_rows_and_columns_and_the_expectation_stays(rate: float) -> None:
    batch = packed(*((i, 64) for i in range(16)))
    drop = Dropout(rate, seed=0)
    dropped = 1.0 - drop.kept(batch, 1, WIDTH).double()
    assert float(dropped.mean()) == pytest.approx(rate, abs=0.006)
    assert float((dropped.mean(0) - rate).abs().max()) < 0.06  # 1024 tokens: 1.6 % is one standard deviation
    x = torch.ones(1024, WIDTH, dtype=torch.float64)
    out = drop.apply(x, batch, 1)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    assert set(out.unique().tolist()) == {0.0, 1.0 / (1.0 - rate)}


def test_places_are_distinct() -> None:
    sites = [EMBEDDING_SITE, *(s for i in range(100) for s in layer_sites(i))]
    assert len(set(sites)) == len(sites)


def test_documents_must_have_ids() -> None:
    anonymous = MicroBatch.of([np.zeros(4, np.uint8)])
    with pytest.raises(ValueError, match="ids of 1 documents"):
        Dropout(0.1, 0).apply(torch.ones(3, WIDTH), anonymous, 1)
    x = torch.ones(3, WIDTH)
    assert Dropout(0.0, 0).apply(x, anonymous, 1) is x

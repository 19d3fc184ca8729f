"""Rows between ranks: optimal, each sample once, and gradients equal to the even split in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_attach.balance import (
    BalancedBatchSampler,
    LossDependsOnSplit,
    Speeds,
    check_loss,
    hf_refusal,
    share_rows,
)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def makespan(rows: Sequence[int], speeds: Sequence[float]) -> float:
    return max(n / p for n, p in zip(rows, speeds, strict=True))


@given(st.lists(st.floats(0.1, 1.0), min_size=2, max_size=3), st.integers(3, 9))
@settings(max_examples=60, deadline=None)
def test_shares_are_optimal(speeds: list[float], num_rows: int) -> None:
    rows = share_rows(num_rows, speeds)
    assert sum(rows) == num_rows
    assert min(rows) >= 1
    splits = (s for s in product(range(1, num_rows + 1), repeat=len(speeds)) if sum(s) == num_rows)
    assert makespan(rows, speeds) == pytest.approx(min(makespan(s, speeds) for s in splits))


def test_one_rank_at_half_speed_costs_a_fifth_and_not_half() -> None:
    speeds = [1.0, 1.0, 0.5, 1.0]
    assert makespan([4, 4, 4, 4], speeds) / makespan(share_rows(16, speeds), speeds) == pytest.approx(1.6)


@pytest.mark.parametrize(("rows", "speeds"), [(1, [1.0, 1.0]), (4, [1.0, 0.0])])
def test_what_cannot_be_shared(rows: int, speeds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"rows cannot|positive"):
        share_rows(rows, speeds)


def world_of(num_samples: int, speeds: Sequence[float]) -> list[BalancedBatchSampler]:
    known = Speeds(len(speeds), lambda s: [s], every=1)
    known.relative = tuple(speeds)
    return [BalancedBatchSampler(num_samples, rows=8, rank=r, speeds=known, seed=3) for r in range(len(speeds))]


@pytest.mark.parametrize("speeds", [[1.0, 1.0], [1.0, 0.4], [0.2, 1.0, 1.0]])
def test_each_sample_is_drawn_once(speeds: list[float]) -> None:
    samplers = world_of(64, speeds)
    even = world_of(64, [1.0] * len(speeds))
    for batches, reference in zip(zip(*samplers, strict=True), zip(*even, strict=True), strict=True):
        drawn = [i for part in batches for i in part]
        assert drawn == [i for part in reference for i in part]  # the same global micro-batch, cut elsewhere
    assert sorted(i for sampler in samplers for part in sampler for i in part) == list(range(64))
    assert len(samplers[0]) == 8


def test_epochs_differ_and_are_reproducible() -> None:
    (sampler,) = world_of(64, [1.0])
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_speeds_are_agreed_on_every_so_often() -> None:
    asked: list[float] = []

    def gather(seconds: float) -> list[float]:
        asked.append(seconds)
        return [0.1, 0.104, 0.2]

    speeds = Speeds(3, gather, every=3)
    for seconds in (0.8, 8.0, 0.8, 0.8, 0.8):
        speeds.observe(seconds, rows=8)
    assert asked == [pytest.approx(0.1)]  # a hiccup is not the median
    assert speeds.relative == (1.0, 1.0, 0.5)


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 8)


DATA = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.randint(0, 8, (8,), generator=torch.Generator().manual_seed(2))


def gradient_of_token_mean(part: Sequence[int], num_tokens: int, world: int = 2) -> list[torch.Tensor]:
    model = _model()
    loss = torch.nn.functional.cross_entropy(model(DATA[list(part)]), LABELS[list(part)], reduction="sum")
    (loss * world / num_tokens).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def gradient_of_own_mean(part: Sequence[int], num_tokens: int) -> list[torch.Tensor]:
    model = _model()
    torch.nn.functional.cross_entropy(model(DATA[list(part)]), LABELS[list(part)]).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_a_token_weighted_loss_may_be_balanced() -> None:
    check_loss(gradient_of_token_mean, range(8))


def test_a_mean_of_means_is_refused_with_the_reason() -> None:
    with pytest.raises(LossDependsOnSplit, match="mean over the rank's own tokens"):
        check_loss(gradient_of_own_mean, range(8))


def test_too_few_rows_to_tell() -> None:
    with pytest.raises(ValueError, match="3 rows"):
        check_loss(gradient_of_token_mean, range(3))


@pytest.mark.parametrize(
    ("across", "takes", "reason"),
    [(True, True, ""), (False, True, "average_tokens_across_devices"), (True, False, "num_items_in_batch")],
)
def test_hugging_face_trainers(across: bool, takes: bool, reason: str) -> None:
    trainer = SimpleNamespace(
        args=SimpleNamespace(average_tokens_across_devices=across), model_accepts_loss_kwargs=takes
    )
    refusal = hf_refusal(trainer)
    assert reason in refusal
    assert bool(refusal) == bool(reason)

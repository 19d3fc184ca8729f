"""The yardstick itself: scores of hand-made flags, generated work, one small stream."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.detection.baselines import ChangePoint
from benchmarks.detection.devices import run_cell
from benchmarks.detection.fleet import Fault
from benchmarks.detection.lengths import document_lengths, micro_batches
from benchmarks.detection.prediction import recorded
from benchmarks.detection.score import Score, poisson, wilson


def test_score_counts_what_happened() -> None:
    fault, missed = Fault(0, 1, 10, 20, 1.5), Fault(1, 0, 10, 20, 1.5)
    score = Score([fault, missed], [fault, missed], start=5)
    for i in range(1, 41):
        flags = np.zeros((2, 3), dtype=np.bool_)
        flags[0, 1] = 12 <= i < 22  # named in the third faulty iteration, cleared two after its end
        flags[1, 2] = 14 <= i < 17  # the wrong device of group 1
        flags[0, 0] = i < 4  # before judging starts
        score.see(i, flags)
    score.finish()
    assert (score.found, score.delays, score.recovered) == (1, [3], 1)
    assert score.false_alarms == 1
    assert score.named_alone == 1
    assert (score.delay(0.5), score.delay(0.95)) == ("3", "-")
    assert score.device_iterations == 36 * 6 - 2 * 30


def test_intervals_against_published_values() -> None:
    assert wilson(10, 10)[0] == pytest.approx(0.7225, abs=1e-3)  # Wilson score, n = 10, all hits
    assert poisson(0, 1.0)[1] == pytest.approx(3.69, abs=0.1)  # exact two-sided: 3.689
    assert poisson(10, 1.0) == pytest.approx((4.795, 18.39), rel=0.02)


def test_packed_micro_batches_fill_their_budget() -> None:
    rng = np.random.default_rng(0)
    lengths, _ = document_lengths(None, rng)
    packed, free = micro_batches(lengths, 8192, 200, rng), micro_batches(lengths, None, 200, rng)
    assert (packed[:, 1] == 8192).all()
    assert (packed[:, 2] <= 8192**2).all()
    assert packed[:, 2].std() > 0.1 * packed[:, 2].mean()
    assert free[:, 1].std() > 0.2 * free[:, 1].mean()


def test_the_change_point_baseline_finds_a_step() -> None:
    rng = np.random.default_rng(1)
    series = rng.normal(1.0, 0.02, (120, 1, 2))
    series[60:, 0, 1] *= 1.3
    rule = ChangePoint(0.1)
    flags = np.stack([rule.see(x) for x in series])
    assert not flags[:60].any()
    assert flags[62:70, 0, 1].any()
    assert not flags[:, 0, 0].any()


def test_a_small_stream() -> None:
    rng = np.random.default_rng(2)
    lengths, _ = document_lengths(None, rng)
    pool = micro_batches(lengths, 8192, 200, rng)
    cell = run_cell("packed 8K", pool, (1.2, 2.0), seeds=1, rounds=1, baseline_seeds=0, rng=rng)
    for score in cell.scores["ResiHP"].values():
        assert score.found == len(score.faults) == 4
        assert score.false_alarms == 0
        assert score.recovered == 4
    assert cell.other == 0


def test_the_trainer_s_virtual_seconds_are_predicted() -> None:
    """A recorded healthy job of strongly varying lengths: 60 iterations after those that were learned from."""
    error, count = recorded()
    assert count == 8 * 58
    assert error < 0.002

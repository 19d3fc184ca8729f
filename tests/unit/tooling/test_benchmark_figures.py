"""The arithmetic of the benchmark reports."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.recovery import POINTS, cases, of_document, render
from benchmarks.report import Spread, milliseconds, percentile, table


def test_spread_of_a_known_sample() -> None:
    s = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (s.count, s.median, s.low, s.high, s.minimum, s.maximum) == (5, 3.0, 2.0, 4.0, 1.0, 5.0)
    assert Spread.of([7.0]) == Spread(1, 7.0, 7.0, 7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_nearest_rank_percentile() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, q) for q in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0


def test_kills_cover_ranks_and_points() -> None:
    assert {rank for rank, _ in cases(8)} == set(range(8))
    assert {point for _, point in cases(4)} == set(POINTS)
    assert set(cases(32)) == set(itertools.product(range(8), POINTS))


def test_recovery_report_shows_net_time() -> None:
    recovery: dict[str, object] = {f"{p}_s": 0.01 for p in ("detect", "plan", "abort", "rebuild", "move", "redo")}
    recovery |= {"total_s": 0.75, "rank": 3, "bytes_moved": 1000, "difference": "R0.S1 TP 2 -> 1"}
    run = of_document({"recoveries": [recovery], "median_iteration_s": 0.25}, "vote")
    assert run.net_s == pytest.approx(0.5)
    text = render([run, run])
    assert "| **net: total - one iteration** | 500 | 500 | 500 | 500 | 500 |" in text
    assert "| 3 vote | R0.S1 TP 2 -> 1 | 500 |" in text


def test_table_and_units() -> None:
    assert table(("a", "b"), [("1", 2)]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert (milliseconds(0.0123), milliseconds(1.5)) == ("12.3", "1500")

"""Frames of an iteration become one report."""

from __future__ import annotations

from resihp_agent.columns import MOST_OPEN, ReportColumns
from support.scripted_worker import committed


def test_complete_when_all_awaited_ranks_are_in() -> None:
    columns = ReportColumns("n0")
    assert columns.add(1, committed(1, 5), (0, 1)) == []
    [(epoch, report)] = columns.add(0, committed(1, 5), (0, 1))
    assert (epoch, report.iteration, report.ranks, report.node) == (1, 5, (0, 1), "n0")
    assert report.tokens == (64, 64)
    assert (report.samples_expected, report.samples_once, report.global_tokens) == (4, 4, 256)


def test_a_rank_may_be_some_iterations_behind() -> None:
    columns = ReportColumns("n0")
    for iteration in (5, 6, 7):
        assert columns.add(0, committed(1, iteration), (0, 1)) == []
    assert [report.iteration for _, report in columns.add(1, committed(1, 5), (0, 1))] == [5]
    assert columns.add(1, committed(1, 7), (0, 1)) == []  # complete, but reports leave in order
    ready = columns.add(1, committed(1, 6), (0, 1))
    assert [(report.iteration, report.ranks) for _, report in ready] == [(6, (0, 1)), (7, (0, 1))]
    assert columns.num_late == 0


def test_too_many_newer_iterations_push_an_incomplete_report_out() -> None:
    columns = ReportColumns("n0")
    for iteration in range(5, 5 + MOST_OPEN):
        assert columns.add(0, committed(1, iteration), (0, 1)) == []
    [(epoch, report)] = columns.add(0, committed(1, 5 + MOST_OPEN), (0, 1))
    assert (epoch, report.iteration, report.ranks) == (1, 5, (0,))
    assert columns.add(1, committed(1, 5), (0, 1)) == []
    assert columns.num_late == 1


def test_late_frames_of_a_sent_report_are_counted() -> None:
    columns = ReportColumns("n0")
    assert len(columns.add(0, committed(1, 5), (0,))) == 1
    assert columns.add(1, committed(1, 5), (0,)) == []
    assert columns.num_late == 1


def test_the_same_iteration_redone_in_a_newer_epoch_is_another_report() -> None:
    columns = ReportColumns("n0")
    columns.add(0, committed(1, 5), (0, 1))
    ready = columns.add(0, committed(2, 5), (0,))
    assert [(epoch, report.iteration) for epoch, report in ready] == [(1, 5), (2, 5)]


def test_flush_gives_what_is_there_once() -> None:
    columns = ReportColumns("n0")
    assert columns.flush() == []
    columns.add(3, committed(1, 5, loss=None), (0, 3))
    [(_, report)] = columns.flush()
    assert report.loss is None
    assert columns.flush() == []

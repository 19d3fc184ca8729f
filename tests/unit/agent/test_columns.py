"""Frames of an iteration become one report."""

from __future__ import annotations

from resihp_agent.columns import ReportColumns
from support.scripted_worker import committed


def test_complete_when_all_awaited_ranks_are_in() -> None:
    columns = ReportColumns("n0")
    assert columns.add(1, committed(1, 5), (0, 1)) == []
    [(epoch, report)] = columns.add(0, committed(1, 5), (0, 1))
    assert (epoch, report.iteration, report.ranks, report.node) == (1, 5, (0, 1), "n0")
    assert report.tokens == (64, 64)
    assert (report.samples_expected, report.samples_once, report.global_tokens) == (4, 4, 256)


def test_the_next_iteration_pushes_an_incomplete_report_out() -> None:
    columns = ReportColumns("n0")
    columns.add(0, committed(1, 5), (0, 1))
    [(epoch, report)] = columns.add(0, committed(1, 6), (0, 1))
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

"""The verdict on a run: each broken promise is found, and a good run has none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from resihp_cli.outcome import count_samples, judge, throughput
from resihp_cli.worker_probe import WorkerProbe
from resihp_gateway.models import IterationView, JobView, ReconfigurationView
from support.gateway import iteration
from support.run_facts import Table, facts, probe


def test_a_good_run() -> None:
    outcome = judge(facts())
    assert outcome.failures == ()
    document = outcome.document
    assert document["holds"]
    assert (document["iterations"], document["committed"]) == (20, 20)
    assert document["survivor_pids_unchanged"]
    assert [(e["epoch"], e["first_iteration"], e["last_iteration"]) for e in document["epochs"]] == [
        (1, 1, 14),
        (2, 15, 20),
    ]
    (recovery,) = document["recoveries"]
    assert (recovery["rank"], recovery["total_s"], recovery["bytes_moved"]) == (3, 0.6, 7)
    assert document["samples"] == {"expected": 200, "seen_once": 200, "lost": 0, "repeated": 0}
    assert document["throughput_tokens_per_s"] == {"before": pytest.approx(10_000), "after": pytest.approx(5_000)}
    assert document["worker_rss_mb"]["max"] == 107
    assert document["faults"][0]["fired"]


def job(**changes: Any) -> JobView:
    return facts().job.model_copy(update=changes)


def changed(**changes: Any) -> list[ReconfigurationView]:
    return [r.model_copy(update=changes) for r in facts().reconfigurations]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"job": job(state="failed", reason="no plan")}, "the job is failed: no plan"),
        ({"job": job(committed=19)}, "19 of 20 iterations"),
        ({"incidents": []}, "fault kill 3@15:compute left no incident"),
        ({"incidents": [i.model_copy(update={"kind": "link_broken"}) for i in facts().incidents]}, "left no incident"),
        ({"parity": {"max_abs_diff": 1e-6}}, "differ from the undisturbed run by 1e-06"),
        ({"parity": {"max_abs_diff": math.nan}}, "differ from the undisturbed run"),
        ({"parity": None}, "gave no answer"),
        ({"parity": {"max_abs_diff": None, "error": "boom"}}, "boom"),
        ({"iterations": facts().iterations[:-1]}, "10 samples lost"),
        ({"reconfigurations": changed(status="planned")}, "is still planned"),
        ({"reconfigurations": changed(proof={"digests_equal": False})}, "proof digests_equal is false"),
        ({"switches_asked": 1}, "0 of 1 planned changes"),
        ({"steps_left": ("rejoin 3@25",)}, "ended before this step of the script: rejoin 3@25"),
        ({"probe": WorkerProbe(Table())}, "not seen as one and the same process"),
    ],
)
def test_each_broken_promise_is_told(changes: dict[str, Any], words: str) -> None:
    if "iterations" in changes:  # the scheduler's own count does not paper over a missing record
        changes["job"] = job(samples_expected=200, samples_once=190)
    outcome = judge(facts(**changes))
    assert any(words in failure for failure in outcome.failures), outcome.failures
    assert not outcome.document["holds"]


def test_a_replaced_process_is_found_even_under_the_same_pid() -> None:
    seen, table = probe()
    table.started[104] = 99.0  # the kernel gave the number to another process
    seen.observe({4: 104}, iteration=19)
    assert not judge(facts(probe=seen)).document["survivor_pids_unchanged"]


def test_a_rank_that_returned_is_no_survivor() -> None:
    devices = [d.model_copy(update={"state": "finished", "start": 1}) if d.rank == 3 else d for d in facts().devices]
    document = judge(facts(devices=devices)).document
    assert document["returned"] == [3]
    assert document["survivors"] == [0, 1, 2, 4, 5, 6, 7]
    assert document["survivor_pids_unchanged"]


def test_survivors_must_be_seen_after_the_change() -> None:
    table = Table()
    table.started = {100 + rank: 1.0 for rank in range(8)}
    early = WorkerProbe(table)
    early.observe({rank: 100 + rank for rank in range(8)}, iteration=5)
    assert not judge(facts(probe=early)).document["survivor_pids_unchanged"]


def test_throughput_needs_iterations() -> None:
    views = [IterationView.model_validate(iteration(k)) for k in range(1, 21)]
    assert throughput([]) == (None, None)
    assert throughput(views[:1]) == (None, None)
    assert throughput(views[:10])[1] is None


def test_repeated_records_are_counted() -> None:
    views = [IterationView.model_validate(iteration(k)) for k in (1, 2, 2)]
    assert count_samples(views, job(samples_expected=None, samples_once=None))["repeated"] == 10

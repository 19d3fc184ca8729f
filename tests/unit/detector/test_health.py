"""Reports of a job in, failure events and scores out: one run over several plans, without a bus."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from resihp_detector.health import JobHealth, rows_of
from resihp_messages import event
from resihp_messages.report import IterationReport
from resihp_plan import ParallelPlan, ReplicaPlan, StagePlan
from support import samples
from support.health_run import CONFIG, Run
from support.plans import demo_plan, stage
from support.telemetry import PlayedJob


@pytest.mark.parametrize("p", [0.5, 0.83])
def test_a_slow_device_is_named_within_six_iterations_and_recovers(p: float) -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(29)
    run.job.speed[5] = p
    run.go_on(20)
    del run.job.speed[5]
    run.go_on(20)
    assert run.events() == [("device_slow", (5,)), ("device_recovered", (5,))]
    slow, recovered = (c for c in run.said if not isinstance(c.body, event.DeviceSuspected))
    assert slow.body.evidence["first_iteration"] == 30
    assert slow.body.evidence["iteration"] <= 36
    assert slow.body.verdict.p == pytest.approx(p, rel=0.05)
    assert slow.body.verdict.node == "n1"
    assert slow.body.verdict.confidence > 0.99
    assert slow.correlation_id == recovered.correlation_id
    suspicions = [c for c in run.said if isinstance(c.body, event.DeviceSuspected)]
    assert {c.correlation_id for c in suspicions} == {slow.correlation_id}


def test_scores_say_how_slow_and_are_asked_for_once() -> None:
    run = Run(PlayedJob(demo_plan(), speed={5: 1.0}))
    run.go_on(29)
    healthy = run.health.new_scores()
    assert healthy is not None
    assert healthy.ranks == tuple(range(8))
    assert set(healthy.p) == {1.0}
    assert run.health.new_scores() is None
    run.job.speed[5] = 0.5
    run.go_on(10)
    slow = run.health.new_scores()
    assert slow is not None
    assert (slow.iteration, slow.p[4]) == (39, 1.0)
    assert slow.p[5] == pytest.approx(0.5, rel=0.02)
    assert slow.p_low[5] < slow.p[5] < slow.p_high[5]


def uneven_plan(epoch: int) -> ParallelPlan:
    """Rank 5 has a third of its stage's work, the replicas have unequal layers and micro-batches."""
    return ParallelPlan(
        epoch,
        (
            ReplicaPlan((stage(0, 4, 0, 1), stage(4, 8, 2, 3)), 5),
            ReplicaPlan((stage(0, 3, 4, 5, weights=(3, 1)), stage(3, 8, 6, 7)), 3),
        ),
    )


def without_rank_5(epoch: int, *standby: int) -> ParallelPlan:
    return ParallelPlan(
        epoch,
        (
            ReplicaPlan((stage(0, 4, 0, 1), stage(4, 8, 2, 3)), 5),
            ReplicaPlan((StagePlan(0, 3, (4,), (1,)), stage(3, 8, 6, 7)), 3),
        ),
        standby=standby,
    )


def test_a_change_of_plan_blinds_nobody() -> None:
    """An uneven plan for a slow device: it stays known, is not reported again, and the next fault is seen at once."""
    run = Run(PlayedJob(demo_plan()))
    run.go_on(29)
    run.job.speed[5] = 0.5
    run.go_on(5)
    run.job.change(uneven_plan(2), "r2")
    run.go_on(6)
    assert run.events() == [("device_slow", (5,))]
    assert run.health.new_scores().p[5] == pytest.approx(0.5, rel=0.03)  # type: ignore[union-attr]
    run.job.speed[2] = 0.6
    run.go_on(5)
    assert run.events() == [("device_slow", (5,)), ("device_slow", (2,))]
    del run.job.speed[5]
    run.go_on(5)
    assert run.events()[2:] == [("device_recovered", (5,))]
    run.go_on(60)
    assert len(run.events()) == 3


def test_a_change_in_the_middle_of_learning_goes_on_learning() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(14)
    run.job.change(without_rank_5(2), "r2")
    run.go_on(14)
    run.job.speed[6] = 0.5
    run.go_on(5)
    assert run.events() == [("device_slow", (6,))]


def test_a_slow_device_that_stands_by_is_probed_until_it_recovers() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(29)
    run.job.speed[5] = 0.5
    run.go_on(5)
    run.job.change(without_rank_5(2, 5), "r2")
    run.go_on(10)
    assert run.health.new_scores().p[5] == pytest.approx(0.5, rel=0.03)  # type: ignore[union-attr]
    del run.job.speed[5]
    run.go_on(5)
    assert run.events() == [("device_slow", (5,)), ("device_recovered", (5,))]
    assert (
        run.said[-1].correlation_id == next(c for c in run.said if isinstance(c.body, event.DeviceSlow)).correlation_id
    )
    assert run.health.new_scores().p[5] == 1.0  # type: ignore[union-attr]
    run.job.speed[5] = 0.7
    run.go_on(6)
    assert run.events()[2:] == [("device_slow", (5,))]
    run.job.change(demo_plan(3), "r3")  # it works again, and is known to be slow
    run.go_on(4)
    assert run.health.new_scores().p[5] == pytest.approx(0.7, rel=0.05)  # type: ignore[union-attr]
    assert len(run.events()) == 3


def test_a_lost_rank_comes_back_as_a_new_device() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(29)
    run.job.speed[5] = 0.5
    run.go_on(5)
    run.job.change(without_rank_5(2), "r2")
    run.go_on(5)
    del run.job.speed[5]
    run.job.change(demo_plan(3), "r3")
    run.go_on(30)
    assert run.events() == [("device_slow", (5,))]
    assert set(run.health.new_scores().p) == {1.0}  # type: ignore[union-attr]


def test_the_same_reports_twice_change_nothing_and_old_epochs_are_past() -> None:
    once, twice = Run(PlayedJob(demo_plan())), Run(PlayedJob(demo_plan()))
    old = twice.epoch(is_first=True)
    for run, repeats in ((once, 1), (twice, 2)):
        for i in range(1, 50):
            run.job.speed = {5: 0.5} if i >= 30 else {}
            for report in run.job.next_iteration():
                for _ in range(repeats):
                    run.said += run.health.take(run.epoch(), report)
    assert [c.message_id for c in twice.said] == [c.message_id for c in once.said]
    twice.job.change(uneven_plan(2), "r2")
    twice.go_on(1)
    assert twice.health.is_past(old)
    assert not twice.health.continues(replace(old, reconfiguration_id="another-run"))


def test_a_restored_snapshot_says_what_the_other_would_have_said() -> None:
    whole, cut = Run(PlayedJob(demo_plan())), Run(PlayedJob(demo_plan()))
    for i in range(1, 80):
        for run in (whole, cut):
            run.job.speed = {5: 0.5} if 30 <= i < 60 else {}
            if i == 40:
                run.job.change(without_rank_5(2, 5), "r2")
            run.go_on(1)
        if i % 7 == 0:
            state = msgpack.unpackb(msgpack.packb(cut.health.snapshot()), strict_map_key=False)
            cut.health = JobHealth.restored("demo", state, lambda job, group: True)
    assert cut.events() == [("device_slow", (5,)), ("device_recovered", (5,))]
    assert [(c.message_id, c.body) for c in cut.said] == [(c.message_id, c.body) for c in whole.said]


def test_thresholds_of_a_running_job_change_and_nothing_else_does() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(29)
    run.health.tune(5.0)  # 1.1x becomes 1.6x
    run.job.speed |= {5: 0.8, 2: 0.5}
    run.go_on(20)
    assert run.events() == [("device_slow", (2,))]
    state = msgpack.unpackb(msgpack.packb(run.health.snapshot()), strict_map_key=False)
    run.health = JobHealth.restored("demo", state, lambda job, group: True)
    assert run.health.scale == 5.0
    run.go_on(10)
    assert run.events() == [("device_slow", (2,))]
    run.health.tune(1.0)
    run.go_on(8)
    assert run.events() == [("device_slow", (2,)), ("device_slow", (5,))]
    with pytest.raises(ValueError, match="positive and finite"):
        run.health.tune(0.0)


def test_partitions_share_the_groups_and_say_together_what_one_would() -> None:
    one = Run(PlayedJob(demo_plan()))
    groups = ("s0", "s1", "standby", "state")
    parts = [JobHealth(one.epoch(), CONFIG, lambda job, group, i=i: groups.index(group) % 3 == i) for i in range(3)]
    told: list[str] = []
    for i in range(1, 50):
        one.job.speed = {5: 0.5, 2: 0.6} if i >= 30 else {}
        for report in one.job.next_iteration():
            one.said += one.health.take(one.epoch(), report)
            for part in parts:
                told += [c.message_id for c in part.take(one.epoch(), report)]
    assert sorted(told) == sorted(c.message_id for c in one.said)
    ranks = [scores.ranks for part in parts if (scores := part.new_scores()) is not None]
    assert sorted(ranks) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_a_slow_tp_group_is_named_although_its_members_wait_for_each_other() -> None:
    run = Run(PlayedJob(demo_plan(), virtual_clock=False))
    run.go_on(40)
    run.job.links = {2: 2.0, 3: 2.0}
    run.go_on(10)
    state = msgpack.unpackb(msgpack.packb(run.health.snapshot()), strict_map_key=False)
    run.health = JobHealth.restored("demo", state, lambda job, group: True)
    run.job.links = {}
    run.go_on(15)
    assert run.events() == [("link_slow", (2, 3)), ("link_recovered", (2, 3))]
    slow, recovered = run.said
    assert slow.body.evidence["link"] == "tp/2-3"
    assert slow.body.verdict.p == pytest.approx(0.5, rel=0.15)
    assert slow.correlation_id == recovered.correlation_id


def test_a_slow_pipeline_edge_is_named_on_the_virtual_clock() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(40)
    run.job.edges[6] = 2.0  # 4>6 is slow, in a pipeline of TP groups of two
    run.go_on(8)
    run.job.edges.clear()
    run.go_on(8)
    assert run.events() == [("link_slow", (4, 6)), ("link_recovered", (4, 6))]
    slow, recovered = run.said
    assert slow.body.evidence["link"] == "edge/4>6/f"
    assert slow.body.verdict.p == pytest.approx(0.5, rel=0.05)
    assert slow.body.evidence["iteration"] <= 46
    assert slow.correlation_id == recovered.correlation_id


def test_edges_of_replicas_with_other_shares_and_counts_are_equally_fast() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(30)
    run.job.change(uneven_plan(2), "r2")
    run.go_on(60)
    run.job.change(without_rank_5(3), "r3")
    run.go_on(60)
    assert run.events() == []
    run.job.edges[6] = 3.0
    run.go_on(8)
    assert run.events() == [("link_slow", (4, 6))]


def test_corrupted_state_is_reported_once_with_the_pair_or_the_culprit() -> None:
    run = Run(PlayedJob(demo_plan()))
    run.go_on(10)
    run.job.digests[6] = "00fe"
    run.go_on(30)
    assert run.events() == [("state_diverged", (2, 6))]
    [said] = run.said
    assert said.body.evidence["is_majority"] is False
    assert said.body.evidence["digests"] == {"2": "00ff", "6": "00fe"}
    assert said.body.evidence["agreed_iteration"] == 10
    three = ParallelPlan(1, tuple(ReplicaPlan((stage(0, 8, r),), 3) for r in range(3)))
    run = Run(PlayedJob(three))
    run.job.digests[1] = "00fe"
    run.go_on(30)
    assert run.events() == [("state_diverged", (1,))]


def test_of_a_pair_that_differed_the_damaged_one_shows_when_its_iteration_is_redone() -> None:
    """In the next epoch, by a detector that was restarted meanwhile; the same incident."""
    run = Run(PlayedJob(demo_plan()))
    run.go_on(10)
    run.job.digests[6] = "00fe"
    run.go_on(13)
    run.job.digests.clear()
    run.job.change(demo_plan().with_epoch(2), "r2")
    run.job.iteration, run.job.redone, run.job.distances[6] = 8, 23, 4e-3
    run.go_on(5)
    state = msgpack.unpackb(msgpack.packb(run.health.snapshot()), strict_map_key=False)
    run.health = JobHealth.restored("demo", state, lambda job, group: True)
    run.go_on(20)
    assert run.events() == [("state_diverged", (2, 6)), ("state_corrupted", (6,))]
    diverged, corrupted = run.said
    assert corrupted.body.evidence["distances"]["bucket/s1m0"] == {"2": [1e-3, 1e-5, 1e-9], "6": [4e-3, 1e-5, 1e-9]}
    assert corrupted.body.verdict.confidence == 0.996
    assert corrupted.correlation_id == diverged.correlation_id
    run.job.digests[6] = "00fe"  # once more, in the same epoch, after iteration 33
    run.go_on(10)
    assert run.said[-1].body.evidence["agreed_iteration"] == 30


def test_a_healthy_job_of_varying_lengths_raises_nothing() -> None:
    run = Run(PlayedJob(demo_plan(), noise=0.02))
    run.go_on(400)
    assert run.events() == []


def test_announced_checkpoints_are_not_judged() -> None:
    report = next(b for b in samples.BODIES if isinstance(b, IterationReport))
    announced = report.model_copy(update={"phases_s": ({"checkpoint": 0.0}, {"snapshot": 0.002})})
    first, second = rows_of(announced)
    assert (first.forward_s, first.backward_s) == (0.0, 0.0)
    assert (second.forward_s, second.backward_s) == (report.forward_s[1], report.backward_s[1])

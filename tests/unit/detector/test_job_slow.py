"""Jobs that tell step times and lengths, and nothing of what their devices computed."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import numpy as np
import pytest

from resihp_detect import PeerConfig
from resihp_detector.health import JobHealth
from resihp_detector.verdicts import Conclusion
from resihp_messages import event
from resihp_messages.report import IterationReport
from resihp_plan import CostModel, MicroBatchWork, ParallelPlan, ReplicaPlan, program, simulate
from support.health_run import Run
from support.plans import stage
from support.telemetry import PlayedJob

CONFIG = PeerConfig.for_clock(virtual=False, processor_time=False)
PLAN = ParallelPlan(
    1, (ReplicaPlan((stage(0, 4, 0), stage(4, 8, 1)), 2), ReplicaPlan((stage(0, 4, 2), stage(4, 8, 3)), 2))
)


class StepsOnly(PlayedJob):
    """Steps as long as the plan's critical path, with documents of lengths that differ by a lot."""

    slowdown = 1.0
    says_lengths = True

    def next_iteration(self) -> list[IterationReport]:
        self.iteration += 1
        rng = np.random.default_rng([self.seed, self.iteration])
        work = tuple(tuple(_documents(rng) for _ in range(2)) for _ in self.plan.replicas)
        cost = replace(CostModel.for_model(self.model), square_s=2.0 * CostModel.for_model(self.model).square_s)
        seconds = simulate(self.plan, program(self.plan), work, cost).makespan_s * float(np.exp(rng.normal(0, 0.02)))
        if not self.says_lengths:
            seconds = float(np.exp(rng.normal(0, 0.05)))
        return [self._steps(rank, work, seconds * self.slowdown) for rank in self.plan.world]

    def _steps(self, rank: int, work: tuple[tuple[MicroBatchWork, ...], ...], seconds: float) -> IterationReport:
        position = self.plan.position(rank)
        assert position is not None
        units = work[position[0]] if self.says_lengths else ()
        return IterationReport(
            node=self.node(rank), iteration=self.iteration, ranks=(rank,), step_s=(seconds,), forward_s=(0.0,),
            backward_s=(0.0,), tp_wait_s=(0.0,), pp_wait_s=(0.0,), dp_wait_s=(0.0,),
            tokens=(sum(u.tokens for u in units),), sum_sq_len=(sum(u.sum_sq_len for u in units),), rss_bytes=(0,),
            loss=None, global_tokens=0, samples_expected=0, samples_once=0,
            unit_tokens=(tuple(u.tokens for u in units),), unit_sum_sq_len=(tuple(u.sum_sq_len for u in units),),
            reconfiguration_id=self.reconfiguration_id,
        )  # fmt: skip


def _documents(rng: np.random.Generator) -> MicroBatchWork:
    """One long document or many short ones, 4,096 tokens together."""
    return MicroBatchWork.of(rng.multinomial(4096, rng.dirichlet(np.full(rng.integers(1, 9), 0.5))).tolist())


def steps_only(*, says_lengths: bool = True) -> tuple[Run, StepsOnly]:
    job = StepsOnly(PLAN, virtual_clock=False)
    job.says_lengths = says_lengths
    return Run(job, CONFIG), job


@pytest.mark.parametrize("says_lengths", [True, False])
def test_a_slow_job_is_said_and_its_end_is(says_lengths: bool) -> None:
    run, job = steps_only(says_lengths=says_lengths)
    run.go_on(40)
    assert run.said == []
    job.slowdown = 1.5
    run.go_on(12)
    job.slowdown = 1.0
    run.go_on(12)
    assert run.events() == [("job_slow", (0, 1, 2, 3)), ("job_recovered", (0, 1, 2, 3))]
    slow, recovered = run.said
    assert isinstance(slow.body, event.JobSlow)
    assert slow.body.evidence["iteration"] <= 48
    assert slow.body.verdict.p == pytest.approx(1 / 1.5, rel=0.08)
    assert slow.body.advice == "validate the devices"
    assert slow.correlation_id == recovered.correlation_id != recovered.message_id


def test_restored_in_any_state_it_says_the_same() -> None:
    whole, job = steps_only()
    reports = []
    for _ in range(60):
        job.slowdown = 1.5 if job.iteration >= 40 else 1.0
        reports.append(job.next_iteration())

    def judge(cut: int | None) -> list[Conclusion]:
        health, said = JobHealth(whole.epoch(is_first=True), CONFIG, lambda job, group: True), []
        for i, some in enumerate(reports):
            for report in some:
                said += health.take(whole.epoch(), report)
                if i == cut:  # in the middle of an iteration
                    state = msgpack.unpackb(msgpack.packb(health.snapshot()), strict_map_key=False)
                    health = JobHealth.restored("demo", state, lambda job, group: True)
        return said

    told = judge(None)
    assert [c.body.verdict.fault for c in told] == ["job_slow"]
    for cut in (10, 30, 42):
        assert judge(cut) == told


def test_a_job_that_tells_compute_seconds_is_judged_by_them_alone() -> None:
    run = Run(PlayedJob(PLAN, virtual_clock=False), CONFIG)
    run.go_on(3)
    assert run.health.snapshot()["level"]["steps"] is None

"""One job, one death, and when what happened. The agents are played: what they add is in benchmarks/recovery."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from resihp_messages import JobSpec
from resihp_messages.link import IterationCommitted, PlanInstalled
from resihp_plan import Cluster, ParallelPlan, Workload
from resihp_plan.planner import plan_after_loss, plan_initial
from resihp_trainer.reference import model_of
from resihp_trainer.trials.trainer_job import TrainerJob, TrialFailed
from resihp_trainer.trials.zygote_client import ZygoteClient

KILL_AT = 4
AFTER = 1
"""Iterations after the one in which the victim dies."""


@dataclass(frozen=True)
class Loss:
    """Seconds from the notice of the death, unless said otherwise."""

    rank: int
    point: str
    notice_s: float
    """From the signal to the notice."""
    plan_s: float
    """The planner."""
    first_all_reduce_s: float
    """From the notice, planner included, to the end of the first collective of the new world on its slowest rank."""
    move_s: float
    """Of the slowest rank, with digests on both sides and the barrier."""
    bytes_moved: int
    total_s: float
    """From the signal to the commit of the redone (or next) iteration on the last rank."""
    iteration_s: float
    """Median of the iterations before."""

    @property
    def net_s(self) -> float:
        return self.total_s - self.iteration_s

    @property
    def declared_s(self) -> float:
        """From the delivery of the new plan to the end of the first collective."""
        return self.first_all_reduce_s - self.plan_s

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_moved / self.move_s


def lose(zygote: ZygoteClient, store: str, base: JobSpec, rank: int, point: str) -> Loss:
    """A job of `base` whose `rank` is killed in iteration `KILL_AT`. Raises `TrialFailed`."""
    fault = {"kind": "kill", "rank": rank, "iteration": KILL_AT, "point": point}
    spec = JobSpec.model_validate({**base.model_dump(), "iterations": KILL_AT + AFTER, "faults": [fault]})
    p, model = spec.parallel, model_of(spec)
    job = TrainerJob(zygote, store, spec, range(p.num_devices))
    try:
        return _Watch(job, rank, point).run(
            plan_initial(Cluster.of(p.num_devices), model, p.tp, p.pp, p.dp, spec.batch.micro_batches).with_epoch(1)
        )
    finally:
        job.close()


class _Watch:
    """Notes when frames of the new epoch arrive."""

    def __init__(self, job: TrainerJob, rank: int, point: str) -> None:
        self.job, self.rank, self.point, self.model = job, rank, point, model_of(job.spec)
        self.page = job.workers[rank].page
        self.noticed_s = self.delivered_s = 0.0
        self.installed: dict[int, tuple[float, PlanInstalled]] = {}
        self.committed: dict[int, float] = {}

    def run(self, plan: ParallelPlan) -> Loss:
        self.job.install(plan, "initial")
        self.job.run(self._on_loss, self._on_pump)
        survivors = set(plan.world) - {self.rank}
        if set(self.installed) != survivors or set(self.committed) != survivors:
            raise TrialFailed(f"not all of {survivors} reported the new epoch: {self.job.situation()}")
        struck_s = self.page.read().fault_at_s
        frames = [f for _, f in self.installed.values()]
        steps = [f.step_s for _, f in self.job.all(IterationCommitted, 1) if f.iteration > 1]
        return Loss(
            rank=self.rank,
            point=self.point,
            notice_s=self.noticed_s - struck_s,
            plan_s=self.delivered_s - self.noticed_s,
            first_all_reduce_s=max(at - f.move_s for at, f in self.installed.values()) - self.noticed_s,
            move_s=max(f.move_s for f in frames),
            bytes_moved=sum(f.bytes_received for f in frames),
            total_s=max(self.committed.values()) - struck_s,
            iteration_s=median(steps),
        )

    def _on_loss(self, plan: ParallelPlan, dead: list[int]) -> ParallelPlan:
        self.noticed_s = self.job.noticed_s
        batch = self.job.spec.batch
        workload = Workload.typical(batch.micro_batches, batch.tokens_per_micro_batch)
        alive = set(plan.world) - set(dead)
        cluster = Cluster.of(max(plan.world) + 1)
        found = plan_after_loss(plan, self.model, cluster, alive, workload, clock=time.monotonic).plan
        self.delivered_s = time.monotonic()
        return found

    def _on_pump(self) -> None:
        if not self.delivered_s:
            return
        now = time.monotonic()
        for rank, f in self.job.all(PlanInstalled, 2):
            self.installed.setdefault(rank, (now, f))
        for rank, step in self.job.all(IterationCommitted, 2):
            if step.first_of_epoch:
                self.committed.setdefault(rank, now)


def data_parallel(replicas: int) -> JobSpec:
    """The demo's model, one device per replica: what torchft can be compared with."""
    return JobSpec.model_validate(
        {"name": f"dp{replicas}", "iterations": 1, "parallel": {"tp": 1, "pp": 1, "dp": replicas}}
    )

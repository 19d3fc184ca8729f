"""A job as the database knows it: what every decision starts from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from resihp_messages import JobSpec
from resihp_plan import Cluster, Device, ModelSpec, ParallelPlan
from resihp_store import (
    DeviceRecord,
    DeviceState,
    JobRecord,
    JobState,
    NodeRecord,
    PlanRecord,
    ReconfigurationRecord,
    ReconfigurationStatus,
    queries,
)


@dataclass(frozen=True)
class Situation:
    """Consistent: read in one transaction. Plans and changes are those from the newest installed epoch on."""

    job: JobRecord
    devices: tuple[DeviceRecord, ...]
    plans: tuple[PlanRecord, ...]
    changes: tuple[ReconfigurationRecord, ...]
    nodes: Mapping[str, NodeRecord]

    @property
    def name(self) -> str:
        return self.job.job

    @property
    def active(self) -> bool:
        """Whether the job has slots and has not ended."""
        return self.job.state in (JobState.STARTING, JobState.RUNNING)

    @cached_property
    def spec(self) -> JobSpec:
        return JobSpec.model_validate(self.job.spec)

    @cached_property
    def model(self) -> ModelSpec:
        return ModelSpec(**self.spec.model.model_dump())

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(tuple(Device(d.rank, d.node, self.spec.parallel.memory_bytes) for d in self.devices))

    @cached_property
    def alive(self) -> frozenset[int]:
        """Ranks that can train: neither lost nor finished, nor still on their way back."""
        return frozenset(d.rank for d in self.devices if d.state.alive and d.state is not DeviceState.FINISHED)

    @cached_property
    def speeds(self) -> Mapping[int, float]:
        """Rank -> p of living ranks that are planned with less than a healthy speed."""
        return {d.rank: d.p for d in self.devices if d.p != 1.0 and d.rank in self.alive}

    @cached_property
    def newcomers(self) -> frozenset[int]:
        """Living ranks that no plan has taken in yet."""
        return self.alive - self.planned

    @cached_property
    def returning(self) -> frozenset[int]:
        """Lost ranks whose worker is being started again."""
        return frozenset(d.rank for d in self.devices if d.state is DeviceState.RETURNING)

    @cached_property
    def planned(self) -> frozenset[int]:
        """Ranks of the plan in force and of a change under way: a death among them stops the others, now or soon."""
        epochs = {p.epoch for p in (self.in_force,) if p} | {c.new_epoch for c in (self.open,) if c}
        return frozenset(rank for p in self.plans if p.epoch in epochs for rank in ParallelPlan.from_dict(p.plan).world)

    @cached_property
    def finished(self) -> frozenset[int]:
        return frozenset(d.rank for d in self.devices if d.state is DeviceState.FINISHED)

    @cached_property
    def lost(self) -> frozenset[int]:
        return frozenset(d.rank for d in self.devices if d.state is DeviceState.LOST)

    @cached_property
    def of_rank(self) -> Mapping[int, DeviceRecord]:
        return {d.rank: d for d in self.devices}

    def without(self, ranks: Collection[int]) -> Situation:
        """The same with these devices lost."""
        gone = set(ranks)
        devices = tuple(replace(d, state=DeviceState.LOST) if d.rank in gone else d for d in self.devices)
        return replace(self, devices=devices)

    @property
    def all_started(self) -> bool:
        """Whether every device that is left has a running worker."""
        return not any(d.state is DeviceState.STARTING for d in self.devices)

    def nodes_of(self, ranks: Iterable[int]) -> dict[str, tuple[DeviceRecord, ...]]:
        """Node -> its devices among `ranks`, both in order."""
        found: dict[str, list[DeviceRecord]] = {}
        for rank in sorted(ranks):
            device = self.of_rank[rank]
            found.setdefault(device.node, []).append(device)
        return {node: tuple(found[node]) for node in sorted(found)}

    @cached_property
    def open(self) -> ReconfigurationRecord | None:
        """The change under way; there is at most one."""
        return next((c for c in self.changes if c.open), None)

    @property
    def newest_epoch(self) -> int:
        """Newest epoch ever issued."""
        return max((p.epoch for p in self.plans), default=0)

    @cached_property
    def bases(self) -> tuple[PlanRecord, ...]:
        """Plans in whose layout ranks may hold state, oldest first. A planned change that was refused is none."""
        refused = {
            c.new_epoch for c in self.changes if c.mode == "planned" and c.status is ReconfigurationStatus.REJECTED
        }
        return tuple(p for p in self.plans if p.epoch not in refused)

    @cached_property
    def in_force(self) -> PlanRecord | None:
        """The plan that the job runs, or is being brought to by a recovery: planned changes count once installed."""
        pending = {c.new_epoch for c in self.changes if c.mode == "planned"}
        took_effect = [p for p in self.plans if p.installed_at is not None or p.epoch not in pending]
        return took_effect[-1] if took_effect else None

    def plan_in_force(self) -> ParallelPlan:
        """Raises ValueError before the initial plan is issued."""
        if self.in_force is None:
            raise ValueError(f"job {self.name} has no plan yet")
        return ParallelPlan.from_dict(self.in_force.plan)


async def load(connection: queries.Connection, job: str) -> Situation | None:
    """The job's situation, or None if there is no such job."""
    record = await queries.job(connection, job)
    if record is None:
        return None
    return Situation(
        job=record,
        devices=await queries.devices(connection, job),
        plans=await queries.plans(connection, job, from_epoch=record.epoch),
        changes=await queries.reconfigurations(connection, job_name=job, from_epoch=record.epoch),
        nodes={n.node: n for n in await queries.nodes(connection)},
    )


def ranks_text(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0, 1`."""
    text = ", ".join(map(str, sorted(ranks)))
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"

"""Devices as people see them: the record, its place in the plan in force, the newest beat, the newest score."""

from __future__ import annotations

from collections.abc import Sequence

from resihp_gateway.context import Gateway
from resihp_gateway.models import DeviceView, Position
from resihp_plan.plan import ParallelPlan
from resihp_store import DeviceRecord, DeviceState, JobRecord, PlanRecord

HEALTHY_P = 0.9
"""From here on a device counts as healthy: below lies the first band that people are shown."""


def devices(
    gateway: Gateway, record: JobRecord, known: Sequence[DeviceRecord], plans: Sequence[PlanRecord]
) -> list[DeviceView]:
    """One view per device, in the order given."""
    plan = in_force(record, plans)
    beats = gateway.beats.workers(record.job)
    scores = gateway.health.newest(record.job)
    found = []
    for device in known:
        place = plan.position(device.rank) if plan is not None and device.state.alive else None
        seen = beats.get(device.rank)
        seen = seen if seen is not None and seen.node == device.node else None
        found.append(
            DeviceView(
                rank=device.rank,
                node=device.node,
                slot=device.slot,
                state=str(device.state),
                p=speed(device, scores.get(device.rank)),
                pid=device.pid,
                start=device.start,
                position=Position(replica=place[0], stage=place[1], tp_index=place[2]) if place else None,
                worker_state=seen.worker.state if seen else None,
                live_pid=seen.worker.pid if seen else None,
                iteration=seen.worker.iteration if seen else None,
                silent_s=seen.worker.silent_s if seen else None,
                beat_age_s=seen.age_s if seen else None,
            )
        )
    return found


def speed(device: DeviceRecord, score: float | None) -> float:
    """p: 0 for a device that is gone, else what the detector says, at most 1; 1 before it has said anything."""
    if not device.state.alive:
        return 0.0
    return 1.0 if score is None or device.state is DeviceState.FINISHED else min(1.0, score)


def in_force(record: JobRecord, plans: Sequence[PlanRecord]) -> ParallelPlan | None:
    """The newest plan that all its ranks installed; before the first one, the newest issued."""
    chosen = next((p for p in plans if p.epoch == record.epoch), plans[-1] if plans else None)
    return ParallelPlan.from_dict(chosen.plan) if chosen else None

"""From what detection concludes about devices to failure events: evidence, verdict, advice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from resihp_detect import Verdict, VerdictKind
from resihp_detector.verdicts import Conclusion, derived_id
from resihp_messages import event

_EVENTS: Mapping[VerdictKind, tuple[type[event._FailureEvent], Any]] = {
    VerdictKind.DEVICE_SUSPECTED: (event.DeviceSuspected, "device_suspected"),
    VerdictKind.DEVICE_SLOW: (event.DeviceSlow, "device_slow"),
    VerdictKind.DEVICE_RECOVERED: (event.DeviceRecovered, "device_recovered"),
    VerdictKind.LINK_SLOW: (event.LinkSlow, "link_slow"),
    VerdictKind.LINK_RECOVERED: (event.LinkRecovered, "link_recovered"),
    VerdictKind.JOB_SLOW: (event.JobSlow, "job_slow"),
    VerdictKind.JOB_RECOVERED: (event.JobRecovered, "job_recovered"),
    VerdictKind.WORKLOAD_SHIFT: (event.WorkloadShift, "workload_shift"),
    VerdictKind.HETEROGENEITY: (event.HeterogeneityFound, "heterogeneity"),
    VerdictKind.STATE_DIVERGED: (event.StateDiverged, "state_diverged"),
    VerdictKind.STATE_CORRUPTED: (event.StateCorrupted, "state_corrupted"),
}


@dataclass(frozen=True)
class Scene:
    """Where and when a verdict was reached."""

    job: str
    epoch: int
    reconfiguration_id: str
    virtual_clock: bool
    processor_time: bool
    nodes: Mapping[int, str]
    """Rank -> node, as the reports say."""
    members: Mapping[str, tuple[int, ...]]
    """Group of peers -> ranks."""


def ranks_of(verdict: Verdict, scene: Scene) -> tuple[int, ...]:
    """Whom the verdict is about."""
    if "ranks" in verdict.evidence:
        return tuple(verdict.evidence["ranks"])
    if verdict.device is not None:
        return (int(verdict.device),)
    return scene.members.get(verdict.group, ())


def incident_id(verdict: Verdict, scene: Scene) -> str:
    """Names the fault that begins here, whoever concludes it again."""
    return derived_id("slow", scene.job, scene.reconfiguration_id, verdict.device, verdict.first_iteration)


def conclusion_of(verdict: Verdict, scene: Scene, correlation_id: str) -> Conclusion:
    """The event to say. Its id depends on the verdict only, so that it is stored once."""
    body_class, fault = _EVENTS[verdict.kind]
    ranks = ranks_of(verdict, scene)
    evidence = {
        **verdict.evidence,
        "iteration": verdict.iteration,
        "first_iteration": verdict.first_iteration,
        "group": verdict.group,
        "reported_by": "detector",
        "reconfiguration_id": scene.reconfiguration_id,
        "virtual_clock": scene.virtual_clock,
        "processor_time": scene.processor_time,
    }
    body = body_class(
        evidence=evidence,
        verdict=event.Verdict(
            fault=fault,
            ranks=ranks,
            node=scene.nodes.get(ranks[0], "unknown") if ranks else "unknown",
            p=min(verdict.p, 1.0),
            confidence=verdict.confidence,
            p_low=min(verdict.p_low, 1.0),
            p_high=min(verdict.p_high, 1.0),
        ),
        advice=_advice(verdict, ranks),
    )
    message_id = derived_id(
        "health", scene.job, scene.reconfiguration_id, verdict.kind, verdict.group, ranks, verdict.first_iteration,
        verdict.evidence.get("bucket", ""),
    )  # fmt: skip
    return Conclusion(body, scene.job, scene.epoch, message_id, correlation_id or message_id)


def _advice(verdict: Verdict, ranks: tuple[int, ...]) -> str:
    who = ", ".join(map(str, ranks))
    match verdict.kind:
        case VerdictKind.DEVICE_SUSPECTED:
            return f"wait: rank {who} may be slow"
        case VerdictKind.DEVICE_SLOW:
            return f"give rank {who} about {100 * verdict.p:.0f} % of its work"
        case VerdictKind.DEVICE_RECOVERED:
            return f"give rank {who} its whole work again"
        case VerdictKind.STATE_DIVERGED if verdict.evidence.get("is_majority"):
            return f"exclude rank {who}: the others agree"
        case VerdictKind.STATE_DIVERGED:
            return f"go back to a state that ranks {who} agreed on, and redo: then the one that was damaged shows"
        case VerdictKind.STATE_CORRUPTED:
            return f"the state is right again; exclude rank {who} if this happens to it once more"
        case VerdictKind.LINK_SLOW:
            return f"keep heavy traffic off the link between ranks {who}"
        case VerdictKind.JOB_SLOW:
            return "validate the devices"
        case _:
            return "nothing to do"

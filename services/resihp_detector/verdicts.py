"""From observations to failure events: evidence, verdict and advice kept apart. Pure.

The message id of a failure event is derived from what it concludes from, so that a redelivered observation, or a
restarted detector that comes to the same conclusion, publishes the same message: the bus stores it once.
"""

from __future__ import annotations

import hashlib
import signal
from dataclasses import dataclass

from pydantic import JsonValue

from resihp_detect import confidence
from resihp_detector.fleet import AgentStart
from resihp_detector.links import Suspicion
from resihp_messages import AnyEnvelope, event


@dataclass(frozen=True)
class Conclusion:
    """A failure event that is ready to be said."""

    body: event._FailureEvent
    job: str
    epoch: int
    message_id: str
    correlation_id: str


def derived_id(*parts: object) -> str:
    """32 hex digits that depend on all parts."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32]


def exit_verdict_id(observation_id: str) -> str:
    return derived_id("exit", observation_id)


def node_verdict_id(node: str, incarnation: str, job: str) -> str:
    return derived_id("node", node, incarnation, job)


def link_verdict_id(job: str, epoch: int) -> str:
    return derived_id("link", job, epoch)


def of_exit(
    observation: AnyEnvelope,
    exited: event.WorkerExited,
    stalled: event.WorkerStalled | None,
    incident: str | None = None,
) -> Conclusion:
    """An exit that nobody asked for: lost, or frozen if its agent had to fence it. `incident`: correlation id of what
    was known about the device before: a slow device that stops is one fault."""
    evidence: dict[str, JsonValue] = {
        "reported_by": observation.source,
        "incarnation": observation.incarnation,
        "observation": observation.message_id,
        "pid": exited.pid,
        "exit_code": exited.exit_code,
        "signal": _signal_name(exited.exit_code),
        "iteration": exited.iteration,
        "detect_s": exited.detect_s,
        "fenced": exited.fenced,
        "start": exited.start,
    }
    if exited.error:
        evidence["error"] = exited.error
    if incident is not None:
        evidence["was_slow"] = True
    if stalled is not None:
        evidence |= {"stalled_s": stalled.stalled_s, "process_state": stalled.process_state}
    body_class = event.WorkerFrozen if exited.fenced else event.WorkerLost
    body = body_class(
        evidence=evidence,
        verdict=event.Verdict(
            fault="worker_frozen" if exited.fenced else "worker_lost",
            ranks=(exited.rank,),
            node=exited.node,
            p=0.0,
            confidence=1.0,  # the kernel said so
        ),
        advice=f"exclude rank {exited.rank}",
    )
    return Conclusion(
        body,
        observation.job,
        observation.epoch,
        exit_verdict_id(observation.message_id),
        incident or observation.message_id,
    )


def of_stall(observation: AnyEnvelope, stalled: event.WorkerStalled) -> Conclusion:
    """A rank of an attached job shows no sign of life; it is its launcher's, so nobody fences it."""
    evidence: dict[str, JsonValue] = {
        "reported_by": observation.source,
        "incarnation": observation.incarnation,
        "observation": observation.message_id,
        "pid": stalled.pid,
        "iteration": stalled.iteration,
        "stalled_s": stalled.stalled_s,
        "detect_s": stalled.stalled_s,
        "process_state": stalled.process_state,
        "fenced": False,
    }
    verdict = event.Verdict(fault="worker_frozen", ranks=(stalled.rank,), node=stalled.node, p=0.0, confidence=0.95)
    advice = f"continue or kill process {stalled.pid} of rank {stalled.rank} on node {stalled.node}"
    body = event.WorkerFrozen(evidence=evidence, verdict=verdict, advice=advice)
    message_id = derived_id("stall", observation.message_id)
    return Conclusion(body, observation.job, observation.epoch, message_id, observation.message_id)


def of_node(
    start: AgentStart, job: str, ranks: tuple[int, ...], *, now_s: float, bound_s: float, replaced: bool
) -> Conclusion:
    """A node that is silent for too long, or whose agent came back as another process."""
    silence_s = start.silence_s(now_s)
    phi = start.intervals.phi(silence_s)
    evidence: dict[str, JsonValue] = {
        "reported_by": "detector",
        "incarnation": start.incarnation,
        "cause": "new incarnation" if replaced else "silence",
        "detect_s": silence_s,
        "silence_s": silence_s,
        "threshold_s": bound_s,
        "phi": phi,
        "mean_interval_s": start.intervals.mean_s,
        "longest_interval_s": start.intervals.longest_s,
        "num_intervals": start.intervals.num_samples,
        "last_sequence": start.sequence,
    }
    what = f"ranks {', '.join(map(str, ranks))} of job {job}" if ranks else "its devices"
    body = event.NodeLost(
        evidence=evidence,
        verdict=event.Verdict(
            fault="node_lost",
            ranks=ranks,
            node=start.node,
            p=0.0,
            confidence=1.0 if replaced else max(0.5, confidence(phi)),
        ),
        advice=f"exclude {what}",
    )
    message_id = node_verdict_id(start.node, start.incarnation, job)
    return Conclusion(body, job, 0, message_id, node_verdict_id(start.node, start.incarnation, ""))


def of_link(suspicion: Suspicion) -> Conclusion:
    """Communication failed and nobody died."""
    first, node = suspicion.observation, suspicion.reports[0].node
    groups: list[JsonValue] = [*sorted({report.group for report in suspicion.reports})]
    errors: list[JsonValue] = [*sorted({report.error[:200] for report in suspicion.reports})]
    evidence: dict[str, JsonValue] = {
        "reported_by": first.source,
        "observation": first.message_id,
        "reporting_ranks": [report.rank for report in suspicion.reports],
        "groups": groups,
        "errors": errors,
        "iteration": suspicion.reports[0].iteration,
        "waited_s": suspicion.grace_s,
        "detect_s": suspicion.grace_s,
    }
    body = event.LinkLost(
        evidence=evidence,
        verdict=event.Verdict(fault="link_broken", ranks=(), node=node, p=1.0, confidence=0.9),
        advice="form all groups anew on the same devices",
    )
    return Conclusion(
        body, suspicion.job, suspicion.epoch, link_verdict_id(suspicion.job, suspicion.epoch), first.message_id
    )


def _signal_name(exit_code: int | None) -> str | None:
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"

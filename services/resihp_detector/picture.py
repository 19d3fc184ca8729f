"""Everything the detector remembers, as a fold over messages. The same fold serves the cold start and live messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pydantic import ValidationError

from resihp_detector.fleet import Fleet
from resihp_detector.hangs import Hangs
from resihp_detector.links import Links
from resihp_detector.validations import Validations
from resihp_messages import FLEET, AnyEnvelope, JobSpec, ack, event
from resihp_messages.thresholds import effective


@dataclass
class Picture:
    """Nodes, links, stalls, and which verdicts have been published."""

    fleet: Fleet
    links: Links
    hangs: Hangs = field(default_factory=lambda: Hangs(grace_s=1.0))
    said: set[str] = field(default_factory=set)
    """Message ids of verdicts that are in the stream."""
    stalls: dict[tuple[str, int, int], event.WorkerStalled] = field(default_factory=dict)
    """(job, rank, pid) -> why its agent fences it."""

    slow: dict[tuple[str, int], str] = field(default_factory=dict)
    """(job, rank) -> correlation id of its slowness."""

    validations: Validations = field(default_factory=Validations)
    thresholds: dict[str, dict[str, float]] = field(default_factory=dict)
    """Job -> what its operators have changed, if anything was said about it."""

    def scale_of(self, job: str) -> float | None:
        """`detect_scale` of the job; None if nothing was said."""
        known = self.thresholds.get(job)
        return None if known is None else effective(known)["detect_scale"]

    def take(self, envelope: AnyEnvelope, now_s: float, *, is_past: bool = False) -> None:
        """Take in one event or acknowledgement. Idempotent. `is_past`: replayed, so its time is not known."""
        body, job = envelope.body, envelope.job
        match body:
            case event.NodeJoined():
                self.fleet.joined(body.node, envelope.incarnation, now_s)
            case event.NodeLeft():
                self.fleet.left(body.node, envelope.incarnation)
            case event.WorkerStalled():
                self.stalls[job, body.rank, body.pid] = body
            case event.WorkersHung() if not is_past:
                self.hangs.reported(envelope, body, now_s)
            case event.WorkerExited():
                self.fleet.ended(body.node, job, body.rank)
                self.links.died(job, envelope.epoch, -math.inf if is_past else now_s)
            case event.LinkBroken():
                self.links.broken(envelope, body, now_s)
            case event.ModeChanged():
                self.thresholds[job] = dict(body.thresholds)
            case event.JobSubmitted():
                self._submitted(job, body)
            case event.JobFinished() | event.JobFailed():
                self._job_over(job)
            case event._FailureEvent():
                self._verdict(envelope, body)
            case ack.WorkersStarted():
                pids = dict(zip(body.ranks, body.pids, strict=True))
                self.fleet.started(body.node, envelope.incarnation, job, pids)
            case ack.ValidationResult():
                self.validations.take(envelope, body)
            case ack.WorkerFinished():
                self.fleet.ended(body.node, job, body.rank)
            case _:
                pass

    def _verdict(self, envelope: AnyEnvelope, body: event._FailureEvent) -> None:
        self.said.add(envelope.message_id)
        self.validations.settled(envelope.message_id)
        if isinstance(body, event.LinkLost):
            self.links.settled(envelope.job, envelope.epoch)
        if isinstance(body, event.NodeLost) and envelope.job == FLEET:  # the last of a node's verdicts
            self.fleet.lost(body.verdict.node, str(body.evidence.get("incarnation", "")))
        for rank in body.verdict.ranks:
            if isinstance(body, event.DeviceSlow):
                self.slow[envelope.job, rank] = envelope.correlation_id
            elif isinstance(body, event.DeviceRecovered | event.WorkerLost | event.WorkerFrozen | event.NodeLost):
                self.slow.pop((envelope.job, rank), None)

    def _submitted(self, job: str, body: event.JobSubmitted) -> None:
        try:
            spec = JobSpec.model_validate(body.spec)
        except ValidationError:  # a newer scheduler's spec: the default bound holds
            return
        self.fleet.job_submitted(job, spec.timeouts.node_s)

    def _job_over(self, job: str) -> None:
        self.fleet.job_over(job)
        self.links.job_over(job)
        self.hangs.job_over(job)
        self.thresholds.pop(job, None)
        self.slow = {key: known for key, known in self.slow.items() if key[0] != job}
        self.stalls = {key: stall for key, stall in self.stalls.items() if key[0] != job}

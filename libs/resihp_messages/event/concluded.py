"""Concluded by the detector: evidence, verdict and advice kept apart. Only the detector says them."""

from __future__ import annotations

from typing import ClassVar, Literal

from resihp_messages.event.base import Fraction, _Event
from resihp_messages.ids import JsonObject, RankField, Text, Token, Wire


class Verdict(Wire):
    """What the detector concludes."""

    fault: Literal[
        "worker_lost",
        "worker_frozen",
        "node_lost",
        "link_broken",
        "device_suspected",
        "device_slow",
        "device_recovered",
        "link_slow",
        "link_recovered",
        "job_slow",
        "job_recovered",
        "workload_shift",
        "heterogeneity",
        "state_diverged",
        "state_corrupted",
        "job_hung",
        "nothing_found",
    ]
    ranks: tuple[RankField, ...]
    node: Token
    p: Fraction
    """Throughput of the device relative to its own healthy peak: 0 is fail-stop."""
    confidence: Fraction
    p_low: Fraction | None = None
    p_high: Fraction | None = None
    """95 % interval of p, if it was estimated."""


class _FailureEvent(_Event):
    evidence: JsonObject
    """Numbers only a machine could have seen: who reported, silence, threshold, exit code."""
    verdict: Verdict
    advice: Text
    """What the detector would do; the scheduler decides."""


class WorkerLost(_FailureEvent):
    """A device stopped: its process is gone."""

    schema_name: ClassVar[str] = "WorkerLost.v1"


class WorkerFrozen(_FailureEvent):
    """A device stopped: its process was alive but made no progress, and is fenced."""

    schema_name: ClassVar[str] = "WorkerFrozen.v1"


class NodeLost(_FailureEvent):
    """All devices of a node stopped: its beats stay away, or its agent came back with a new incarnation."""

    schema_name: ClassVar[str] = "NodeLost.v1"


class LinkLost(_FailureEvent):
    """A link broke without a death: groups must be formed anew, no device is excluded."""

    schema_name: ClassVar[str] = "LinkLost.v1"


class DeviceSuspected(_FailureEvent):
    """A device seems to be slow; not sure yet. Nothing is changed because of it."""

    schema_name: ClassVar[str] = "DeviceSuspected.v1"


class DeviceSlow(_FailureEvent):
    """A device computes slower than its healthy self. Evidence holds `iteration` (when it was concluded) and
    `first_iteration` (when it began)."""

    schema_name: ClassVar[str] = "DeviceSlow.v1"


class DeviceRecovered(_FailureEvent):
    """A device that was slow computes as before. Evidence as of `DeviceSlow`."""

    schema_name: ClassVar[str] = "DeviceRecovered.v1"


class LinkSlow(_FailureEvent):
    """Transfers between two ranks take longer than those of their peers."""

    schema_name: ClassVar[str] = "LinkSlow.v1"


class LinkRecovered(_FailureEvent):
    """The end of `LinkSlow`."""

    schema_name: ClassVar[str] = "LinkRecovered.v1"


class JobSlow(_FailureEvent):
    """Iterations take longer than their work explains; who is slow needs validation."""

    schema_name: ClassVar[str] = "JobSlow.v1"


class JobRecovered(_FailureEvent):
    """The end of `JobSlow`."""

    schema_name: ClassVar[str] = "JobRecovered.v1"


class JobHung(_FailureEvent):
    """All ranks of an attached job live, and none makes progress. `verdict.ranks`: those that the others wait for;
    evidence holds the newest collective and the line of code of every rank."""

    schema_name: ClassVar[str] = "JobHung.v1"


class WorkloadShift(_FailureEvent):
    """All peers changed together (other data, heat): no fault of a device."""

    schema_name: ClassVar[str] = "WorkloadShift.v1"


class HeterogeneityFound(_FailureEvent):
    """Devices of one group differ for good: said once, no fault."""

    schema_name: ClassVar[str] = "HeterogeneityFound.v1"


class StateDiverged(_FailureEvent):
    """Replicas that must hold equal bits do not: silent corruption. `verdict.ranks`: the culprits, or everybody
    concerned if there is no majority."""

    schema_name: ClassVar[str] = "StateDiverged.v1"


class StateCorrupted(_FailureEvent):
    """The end of a `StateDiverged`: the iterations were redone from a state that all agreed on, and the earlier state
    of `verdict.ranks` was farther from the redone one than that of their replicas, so theirs was damaged."""

    schema_name: ClassVar[str] = "StateCorrupted.v1"


class ValidationConcluded(_FailureEvent):
    """What the probes of `ValidateDevices` say: a device (`device_slow`), a link (`link_slow`), or `nothing_found`."""

    schema_name: ClassVar[str] = "ValidationConcluded.v1"

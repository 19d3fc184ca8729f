"""The exported names are a promise to every other room."""

from __future__ import annotations

import resihp_messages
from resihp_messages import STREAMS, Kind

EXPORTED = (
    "FLEET MAX_MESSAGE_BYTES STREAMS AnyEnvelope AttachedConfig BatchConfig Body CheckpointConfig "
    "ClockConfig DataConfig Envelope EvaluationConfig FaultPoint JobSpec Kind MalformedMessage ModelConfig "
    "OptimizerConfig ParallelConfig Rank ScriptedFault SnapshotConfig StreamSpec Subject TelemetryConfig TimeoutConfig "
    "Wire ack command decode encode event link new_id pack page parse pattern report request stream_of "
    "subject unpack"
)

BY_KIND = {
    Kind.BEAT: "NodeBeat",
    Kind.REPORT: "IterationReport",
    Kind.SCORE: "HealthScores",
    Kind.EVENT: """HeterogeneityFound JobRecovered JobSlow LinkRecovered StateCorrupted StateDiverged
        ValidationConcluded ActionAnswered ActionRequested DecisionClosed DecisionMade DeviceRecovered DeviceSlow
        DeviceSuspected JobFailed JobFinished JobStarted JobSubmitted LinkBroken LinkLost LinkSlow
        ModeChanged NodeJoined NodeLeft NodeLost ReconfigurationApplied ReconfigurationPlanned
        ReconfigurationRejected ReconfigurationSuperseded WorkerExited WorkerFrozen WorkerLost
        WorkerStalled WorkloadShift JobHung WorkerResumed WorkersAttached WorkersHung
        CheckpointFailed EvaluationFinished""",
    Kind.COMMAND: "ApplyPlan FenceWorker FinishJob InflictFault StartWorkers StopJob ValidateDevices WatchWorkers",
    Kind.ACK: """IterationResumed PlanApplied PlanPrepared PlanRejected ValidationResult WorkerFailed WorkerFinished
        WorkersStarted""",
    Kind.REQUEST: """Probe RequestEvict RequestFault RequestHold RequestMode RequestPlan RequestReadmit RequestRestart
        RequestRuling RequestStop RequestThreshold RequestUndo RequestValidation SubmitJob""",
    Kind.REPLY: "Reply",
}


def test_exported_names() -> None:
    assert sorted(resihp_messages.__all__) == sorted(EXPORTED.split())
    for name in EXPORTED.split():
        assert hasattr(resihp_messages, name)


def test_schemas_by_kind() -> None:
    registered: dict[Kind, set[str]] = {kind: set() for kind in Kind}
    for name, body in resihp_messages.Body.registry.items():
        registered[body.kind].add(name.removesuffix(".v1"))
    assert registered == {kind: set(names.split()) for kind, names in BY_KIND.items()}


def test_streams() -> None:
    assert {spec.name: spec.kind for spec in STREAMS} == {
        "RESIHP_EVENT": Kind.EVENT,
        "RESIHP_COMMAND": Kind.COMMAND,
        "RESIHP_ACK": Kind.ACK,
        "RESIHP_REPORT": Kind.REPORT,
        "RESIHP_SCORE": Kind.SCORE,
    }

"""The wire contract: identifiers, envelope, codec, subjects, and every message between ResiHP's processes.

Errors: `MalformedMessage` (a ValueError) for bytes or values that break the contract; ValueError for a bad subject.
"""

from resihp_messages import ack, command, event, link, page, report, request
from resihp_messages.codec import MAX_MESSAGE_BYTES, MalformedMessage, decode, encode, pack, unpack
from resihp_messages.envelope import AnyEnvelope, Body, Envelope, Kind
from resihp_messages.ids import FLEET, Rank, Wire, new_id
from resihp_messages.job import (
    AttachedConfig,
    BatchConfig,
    CheckpointConfig,
    ClockConfig,
    DataConfig,
    EvaluationConfig,
    FaultPoint,
    JobSpec,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    ScriptedFault,
    SnapshotConfig,
    TelemetryConfig,
    TimeoutConfig,
)
from resihp_messages.subjects import STREAMS, StreamSpec, Subject, parse, pattern, stream_of, subject

__all__ = [
    "FLEET",
    "MAX_MESSAGE_BYTES",
    "STREAMS",
    "AnyEnvelope",
    "AttachedConfig",
    "BatchConfig",
    "Body",
    "CheckpointConfig",
    "ClockConfig",
    "DataConfig",
    "Envelope",
    "EvaluationConfig",
    "FaultPoint",
    "JobSpec",
    "Kind",
    "MalformedMessage",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Rank",
    "ScriptedFault",
    "SnapshotConfig",
    "StreamSpec",
    "Subject",
    "TelemetryConfig",
    "TimeoutConfig",
    "Wire",
    "ack",
    "command",
    "decode",
    "encode",
    "event",
    "link",
    "new_id",
    "pack",
    "page",
    "parse",
    "pattern",
    "report",
    "request",
    "stream_of",
    "subject",
    "unpack",
]

"""Frames on the Unix socket between an agent and one of its workers: 4 bytes big-endian length, then MessagePack.

The socket is private to one worker, so frames carry no envelope. `type` selects the class. Worker frames go up, agent
frames go down. The progress page (shared memory, `resihp_messages.page`) carries what must not wait for a socket.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from resihp_messages.codec import MAX_MESSAGE_BYTES, MalformedMessage, pack, unpack
from resihp_messages.ids import (
    Count,
    Digest,
    Distances,
    Finite,
    JsonObject,
    RankField,
    Seconds,
    StateSource,
    Text,
    Token,
    Wire,
)
from resihp_messages.job import JobSpec
from resihp_messages.placement import Placement

# --- down: agent -> worker ----------------------------------------------------------------------------------------


class Configure(Wire):
    """First frame down: who you are."""

    type: Literal["configure"] = "configure"
    job: Token
    rank: RankField
    node: Token
    comm_host: Text
    spec: JobSpec
    start: Count = 0
    """Which start of this rank this process is; later ones than the first (0) are replacements."""
    device_index: Count = 0
    """Of the node's devices, the one that is this worker's (only backend nccl)."""


class InstallPlan(Wire):
    """A plan to install (`initial`, `recovery`) or to hold until the vote (`planned`)."""

    type: Literal["install_plan"] = "install_plan"
    mode: Literal["initial", "recovery", "planned"]
    epoch: Count
    reconfiguration_id: Token
    plan: JsonObject
    digest: Digest
    base_plans: tuple[JsonObject, ...] = ()
    store_address: Text
    dead_ranks: tuple[RankField, ...] = ()
    placement: Placement = ()
    """Node and start of every rank of the plan's world and of every dead rank; the same for all of them."""
    back_to: Count | None = None
    """Only `recovery`: go back to the newest copy of the state that is not newer than this iteration."""


class AbortEpoch(Wire):
    """These ranks are gone: leave every operation of an epoch whose plan contains one of them, and await a plan."""

    type: Literal["abort_epoch"] = "abort_epoch"
    dead_ranks: tuple[RankField, ...]
    starts: tuple[Count, ...] = ()
    """Which start of each of `dead_ranks` is gone; empty: the first (0) of all of them."""
    epoch: Count = 0
    """With no dead ranks (broken link): abort this epoch if it is the current one."""
    noticed_s: Finite
    """CLOCK_MONOTONIC of this host when the agent noticed."""
    reason: Text


class FinishNow(Wire):
    """Every rank has committed the last iteration: write the result and exit."""

    type: Literal["finish_now"] = "finish_now"


class StopNow(Wire):
    """Exit as soon as possible with status 0, without a result."""

    type: Literal["stop_now"] = "stop_now"
    reason: Text = ""


class SetSpeed(Wire):
    """Testing, on the virtual clock: from now on this device computes (or its link transfers) at `factor` of its
    healthy speed."""

    type: Literal["set_speed"] = "set_speed"
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    for_s: Seconds = 0.0
    """For how long; 0 means for good."""
    peer: RankField | None = None
    """The link to this rank; None: the device itself."""


class CorruptState(Wire):
    """Testing: flip one bit of one parameter, as silent corruption would."""

    type: Literal["corrupt_state"] = "corrupt_state"


class Validate(Wire):
    """Run these probes after the next iteration whose vote says that every rank holds this order."""

    type: Literal["validate"] = "validate"
    validation_id: Token
    ranks: tuple[RankField, ...]
    links: tuple[tuple[RankField, RankField], ...] = ()


# --- up: worker -> agent ------------------------------------------------------------------------------------------


class Hello(Wire):
    """First frame up: configured and waiting for a plan."""

    type: Literal["hello"] = "hello"
    rank: RankField
    pid: Count


class PlanHeld(Wire):
    """The plan arrived, is valid for this rank and its digest is right."""

    type: Literal["plan_held"] = "plan_held"
    epoch: Count
    reconfiguration_id: Token
    digest: Digest


class PlanRefused(Wire):
    """The plan cannot be used by this rank; nothing changed."""

    type: Literal["plan_refused"] = "plan_refused"
    epoch: Count
    reconfiguration_id: Token
    reason: Text


class EpochAborted(Wire):
    """The rank left its operation, dropped the partial iteration and waits for a plan."""

    type: Literal["epoch_aborted"] = "epoch_aborted"
    epoch: Count
    committed: Count
    abort_s: Seconds
    """From the agent's notice to leaving the operation."""


class CommunicationFailed(Wire):
    """A collective raised before any abort arrived; the rank has torn its groups down and waits for a plan."""

    type: Literal["communication_failed"] = "communication_failed"
    epoch: Count
    group: Text
    error: Text
    iteration: Count


class PlanInstalled(Wire):
    """Groups are rebuilt and shards verified; the rank starts (or redoes) iteration `committed + 1`."""

    type: Literal["plan_installed"] = "plan_installed"
    epoch: Count
    reconfiguration_id: Token
    digest: Digest
    committed: Count
    abort_s: Seconds
    rebuild_s: Seconds
    move_s: Seconds
    bytes_received: Count
    digests_equal: bool
    lost_iterations: Count = 0
    """Committed iterations that were given up, because nobody alive holds their state."""
    state_source: StateSource = "live"


class IterationCommitted(Wire):
    """One optimizer step was applied by this rank. Compute seconds exclude waits. Sent without blocking."""

    type: Literal["iteration_committed"] = "iteration_committed"
    epoch: Count
    iteration: Count
    first_of_epoch: bool
    step_s: Seconds
    forward_s: Seconds
    backward_s: Seconds
    tp_wait_s: Seconds
    pp_wait_s: Seconds
    dp_wait_s: Seconds
    tokens: Count
    sum_sq_len: Count
    rss_bytes: Count
    loss: Finite | None
    global_tokens: Count
    samples_expected: Count
    samples_once: Count
    redo_s: Seconds = 0.0
    """Only with `first_of_epoch`: from the end of the state move to this commit."""
    unit_tokens: tuple[Count, ...] = ()
    """Of every micro-batch that this rank executed, in the order of the forwards, as are the columns below."""
    unit_sum_sq_len: tuple[Count, ...] = ()
    unit_forward_s: tuple[Seconds, ...] = ()
    unit_backward_s: tuple[Seconds, ...] = ()
    """Whole, or both halves of a split backward together."""
    unit_weight_s: tuple[Seconds, ...] = ()
    """Split backward only: its weight half."""
    fingerprints: dict[str, str] = Field(default_factory=dict)
    """In some iterations: bucket of equal owners -> 64-bit digest of its slices' parameters and moments, in hex. Equal
    on all owners of the bucket."""
    distances: dict[str, Distances] = Field(default_factory=dict)
    """In the iteration from which replicas that differed went back, once it is redone: bucket of equal owners -> how
    far this rank's earlier state was from the redone one."""
    phases_s: dict[str, Seconds] = Field(default_factory=dict)
    """Announced work besides training (`snapshot`, `checkpoint`, `evaluation`) -> seconds of the training thread that
    it took. Evaluation comes before the iteration and is not in its `step_s`."""
    virtual_clock: bool = False
    """Compute seconds are those of a virtual device."""
    processor_time: bool = False
    """Compute seconds are processor time of a core that other processes use too."""
    probe_s: Seconds = 0.0
    """In some iterations: seconds of the compute probe; 0: none."""
    link_wait_s: dict[str, Seconds] = Field(default_factory=dict)
    """Communication group -> seconds waited in it."""


class Evaluated(Wire):
    """The loss on held-out text after an iteration; sent by one rank of the plan."""

    type: Literal["evaluated"] = "evaluated"
    epoch: Count
    iteration: Count
    loss: Finite | None
    """Mean over its tokens; None when it is not finite."""
    tokens: Count
    seconds: Seconds


class CheckpointFailed(Wire):
    """This rank could not write its part of a checkpoint (or, if it names them, finish one); training goes on."""

    type: Literal["checkpoint_failed"] = "checkpoint_failed"
    iteration: Count
    path: Text
    error: Text


class Validated(Wire):
    """The probes that `Validate` asked of this rank."""

    type: Literal["validated"] = "validated"
    validation_id: Token
    iteration: Count
    asked: tuple[RankField, ...]
    """Everybody who was asked to compute."""
    compute_s: Seconds
    link_s: dict[str, Seconds]


class Finished(Wire):
    """Last frame of a successful rank."""

    type: Literal["finished"] = "finished"
    committed: Count
    samples_expected: Count
    samples_once: Count
    final_loss: Finite | None
    peak_rss_bytes: Count
    shards_file: Text = ""


class Failed(Wire):
    """Last frame of a rank that cannot go on by its own fault."""

    type: Literal["failed"] = "failed"
    error: Text


DownFrame = Annotated[
    Configure | InstallPlan | AbortEpoch | SetSpeed | CorruptState | Validate | FinishNow | StopNow,
    Field(discriminator="type"),
]
UpFrame = Annotated[
    Hello
    | PlanHeld
    | PlanRefused
    | EpochAborted
    | CommunicationFailed
    | PlanInstalled
    | IterationCommitted
    | Evaluated
    | CheckpointFailed
    | Validated
    | Finished
    | Failed,
    Field(discriminator="type"),
]
_DOWN: TypeAdapter[DownFrame] = TypeAdapter(DownFrame)
_UP: TypeAdapter[UpFrame] = TypeAdapter(UpFrame)

F = TypeVar("F")
W = TypeVar("W", bound=Wire)

HEADER = struct.Struct(">I")


def unchecked(kind: type[W], **fields: Any) -> W:
    """A message that is made in every iteration, by who computed its values: validation is left to who receives it.
    Only for `frame`: fields that are not given have no value here, and their default over there."""
    message = kind.__new__(kind)
    object.__setattr__(message, "__dict__", {"type": kind.model_fields["type"].default, **fields})
    return message


def frame(message: Wire) -> bytes:
    """One frame with its length header. Fields go as they are: what is not valid is refused where it arrives."""
    raw = pack(vars(message))
    return HEADER.pack(len(raw)) + raw


def payload_length(header: bytes) -> int:
    """Length announced by a frame header. Raises `MalformedMessage` if it is larger than any valid frame."""
    (length,) = HEADER.unpack(header)
    if length > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"frame of {length} bytes exceeds {MAX_MESSAGE_BYTES}")
    return int(length)


def parse_down(raw: bytes) -> DownFrame:
    """Payload of a frame to a worker. Raises `MalformedMessage`."""
    return _parse(_DOWN, raw)


def parse_up(raw: bytes) -> UpFrame:
    """Payload of a frame to an agent. Raises `MalformedMessage`."""
    return _parse(_UP, raw)


def _parse(adapter: TypeAdapter[F], raw: bytes) -> F:
    try:
        return adapter.validate_python(unpack(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise MalformedMessage(f"link frame: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

"""Observed by agents: facts of one node. Only agents say them (`resihp_bus.identities`)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from resihp_messages.event.base import _Event
from resihp_messages.ids import Count, Finite, JsonObject, RankField, Seconds, Text, Token, Wire


class NodeJoined(_Event):
    """An agent process is up (job `_fleet`). A new incarnation of a known node means that its old workers are gone."""

    schema_name: ClassVar[str] = "NodeJoined.v1"

    node: Token
    host: Text
    comm_host: Text
    num_slots: Annotated[int, Field(ge=1)]
    store_address: Text


class NodeLeft(_Event):
    """An agent stopped in order (job `_fleet`)."""

    schema_name: ClassVar[str] = "NodeLeft.v1"

    node: Token


class WorkerExited(_Event):
    """A worker process ended although nobody asked it to."""

    schema_name: ClassVar[str] = "WorkerExited.v1"

    node: Token
    rank: RankField
    pid: Count
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None
    """As in `subprocess`: negative for a signal. None if it could not be learned."""
    iteration: Count
    detect_s: Seconds
    """From the worker's last sign of life to the agent's notice (an upper bound on the delay of detection)."""
    fenced: bool = False
    """True if the agent killed it itself because it was frozen."""
    start: Count = 0
    """Which start of the rank it was."""
    error: Text = ""
    """Of a rank of an attached job: the exception that ended it, if it said so."""


class WorkersAttached(_Event):
    """Ranks of a job that somebody else launched report to this agent."""

    schema_name: ClassVar[str] = "WorkersAttached.v1"
    node: Token
    ranks: tuple[RankField, ...]
    pids: tuple[Count, ...]
    start: Count = 0
    """How many times the launcher has started the job anew before."""
    spec: JsonObject
    """The job as a `JobSpec` with its `attached` part: the same from every node."""


class WorkerResumed(_Event):
    """A worker that had stalled, and was not fenced, shows life again."""

    schema_name: ClassVar[str] = "WorkerResumed.v1"
    node: Token
    rank: RankField
    pid: Count
    silent_s: Seconds


class StuckRank(Wire):
    """What one rank does while its job makes no progress."""

    rank: RankField
    quiet_s: Seconds
    frozen: bool = False
    """It shows no sign of life at all."""
    phase: Text = ""
    where: Text = ""
    """`file:line function` of its training thread."""
    op: Text = ""
    """Its newest collective; empty if that is not known."""
    group: Text = ""
    seq: Count = 0
    """Number of that collective in its group: who has the smallest is the one that did not come."""
    sizes: Text = ""
    done: bool = False
    """The collective is over: the rank waits for no one in it."""


class WorkersHung(_Event):
    """All ranks of a job on this node live and make no progress."""

    schema_name: ClassVar[str] = "WorkersHung.v1"
    node: Token
    iteration: Count
    quiet_s: Seconds
    ranks: tuple[StuckRank, ...]


class WorkerStalled(_Event):
    """A worker showed no sign of life for `stalled_s`; its agent fences it (SIGKILL) before anything else, unless the
    job is an attached one."""

    schema_name: ClassVar[str] = "WorkerStalled.v1"

    node: Token
    rank: RankField
    pid: Count
    iteration: Count
    stalled_s: Seconds
    process_state: Annotated[str, Field(max_length=1)] = ""
    """State letter of the process table (`T`: stopped)."""
    fenced: bool = True
    """Whether the agent kills it. Ranks of attached jobs belong to their launcher."""


class LinkBroken(_Event):
    """A worker's collective failed though its agent knows of no death: an unexplained broken link."""

    schema_name: ClassVar[str] = "LinkBroken.v1"

    node: Token
    rank: RankField
    group: Text
    error: Text
    iteration: Count


class EvaluationFinished(_Event):
    """The loss on held-out text after an iteration (`[evaluation]` of the job file). May be said twice of one
    iteration, with the same loss, if a fault follows it at once."""

    schema_name: ClassVar[str] = "EvaluationFinished.v1"

    node: Token
    rank: RankField
    iteration: Count
    loss: Finite | None
    """Mean over its tokens; None when it is not finite."""
    tokens: Count
    seconds: Seconds


class CheckpointFailed(_Event):
    """A checkpoint could not be written (disk full, folder not writable). Training goes on, the older checkpoints stay,
    the next one is tried in its turn. Said once per node and iteration."""

    schema_name: ClassVar[str] = "CheckpointFailed.v1"

    node: Token
    rank: RankField
    iteration: Count
    path: Text
    error: Text

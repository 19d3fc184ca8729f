"""Commands: imperative, ordered per node, fenced. Written by the scheduler's outbox, read by one agent each."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import Count, Digest, JsonObject, RankField, Seconds, Text, Token
from resihp_messages.job import JobSpec
from resihp_messages.placement import Placement


class _Command(Body):
    kind: ClassVar[Kind] = Kind.COMMAND

    node: Token
    token: Count
    """The leader's fencing token; agents refuse a smaller one than they have seen."""
    agent_incarnation: Text = ""
    """If given, only this start of the agent obeys: what waited for an agent that died is void for its successor."""


class StartWorkers(_Command):
    """Start one worker process for each rank. Idempotent: a running rank of the same job is left alone."""

    schema_name: ClassVar[str] = "StartWorkers.v1"

    ranks: tuple[RankField, ...]
    spec: JobSpec
    starts: tuple[Count, ...] = ()
    """Which start of each rank this is; empty: the first (0) of all of them."""


class WatchWorkers(_Command):
    """The ranks that attached here are known as this job: send their reports under the envelope's epoch."""

    schema_name: ClassVar[str] = "WatchWorkers.v1"
    spec: JobSpec
    reconfiguration_id: Token
    """Of the first plan of this start of the job."""
    plan: JsonObject
    """Who is whose peer, as a plan that nobody installs."""
    digest: Digest


class ApplyPlan(_Command):
    """Install a plan. The plan epoch is the envelope's `epoch`; agents refuse one that is not newer.

    `initial` and `recovery` are installed at once by waiting workers; `planned` is held until the vote of an iteration
    says that every rank holds it.
    """

    schema_name: ClassVar[str] = "ApplyPlan.v1"

    mode: Literal["initial", "recovery", "planned"]
    reconfiguration_id: Token
    plan: JsonObject
    """What `resihp_plan.ParallelPlan.from_dict` reads: `to_dict()`, compact for many devices."""
    digest: Digest
    base_plans: tuple[JsonObject, ...] = ()
    """Every plan in whose layout a rank may still hold state, oldest first."""
    store_address: Text
    """Rendezvous store of this epoch."""
    dead_ranks: tuple[RankField, ...] = ()
    placement: Placement = ()
    """Node and start of every rank of the plan's world and of every dead rank."""
    back_to: Count | None = None
    """Only `recovery`: replicas agreed after this iteration and differ since. All ranks go back to a copy of the state
    that is not newer, and redo what follows (docs/protocol.md, claim 9)."""


class FenceWorker(_Command):
    """Kill a worker (SIGKILL to its process group) and verify that it is gone."""

    schema_name: ClassVar[str] = "FenceWorker.v1"

    rank: RankField
    reason: Text


class InflictFault(_Command):
    """Testing: send SIGKILL or SIGSTOP to a worker, as a fault would, slow its virtual device or one of its virtual
    links, or flip a bit of its parameters."""

    schema_name: ClassVar[str] = "InflictFault.v1"

    rank: RankField
    fault: Literal["kill", "freeze", "slow", "slow_link", "corrupt"]
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow` and `slow_link` (virtual clock): speed of device or link from then on, relative to healthy."""
    for_s: Seconds = 0.0
    """Only `slow` and `slow_link`: for how long; 0 means for good."""
    peer: RankField | None = None
    """Only `slow_link`: the other end, which gets an order of its own."""


class ValidateDevices(_Command):
    """Probe these devices and links at the next iteration boundary for which every rank holds this order."""

    schema_name: ClassVar[str] = "ValidateDevices.v1"

    validation_id: Token
    ranks: tuple[RankField, ...]
    """Suspects and peers: each times a matrix product."""
    links: tuple[tuple[RankField, RankField], ...] = ()
    """(sender, receiver) of pipeline edges: each times a transfer."""


class FinishJob(_Command):
    """Some ranks have finished, so the last iteration is committed everywhere: the rest write their result and exit."""

    schema_name: ClassVar[str] = "FinishJob.v1"


class StopJob(_Command):
    """End the job's workers on this node now."""

    schema_name: ClassVar[str] = "StopJob.v1"

    reason: Text

"""Events: durable facts in the past tense. Users subscribe to `resihp.v1.<job>.event.>`.

Three groups: what an agent observed, what the detector concluded (evidence, verdict and advice kept apart), and what
the scheduler decided.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import Count, Digest, Finite, JsonObject, RankField, Seconds, StateSource, Text, Token, Wire

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class _Event(Body):
    kind: ClassVar[Kind] = Kind.EVENT


# --- observed by agents -------------------------------------------------------------------------------------------


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


# --- concluded by the detector ------------------------------------------------------------------------------------


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


class ValidationConcluded(_FailureEvent):
    """What the probes of `ValidateDevices` say: a device (`device_slow`), a link (`link_slow`), or `nothing_found`."""

    schema_name: ClassVar[str] = "ValidationConcluded.v1"


# --- decided by the scheduler -------------------------------------------------------------------------------------


class JobSubmitted(_Event):
    """A job was accepted and recorded."""

    schema_name: ClassVar[str] = "JobSubmitted.v1"

    spec: JsonObject


class JobStarted(_Event):
    """Every rank runs the first plan."""

    schema_name: ClassVar[str] = "JobStarted.v1"

    plan_digest: Digest
    ranks: tuple[RankField, ...]


class ReconfigurationPlanned(_Event):
    """A new plan was decided and its commands are on their way."""

    schema_name: ClassVar[str] = "ReconfigurationPlanned.v1"

    reconfiguration_id: Token
    reason: Text
    mode: Literal["recovery", "planned"]
    old_digest: Digest
    new_digest: Digest
    difference: Text
    """The change in words: `R1.S0 TP 2 -> 1; micro-batches 4+4 -> 5+3`."""
    plan_s: Seconds
    predicted_tokens_per_s: Finite


class ReconfigurationApplied(_Event):
    """All ranks run the new plan and its first iteration is committed."""

    schema_name: ClassVar[str] = "ReconfigurationApplied.v1"

    reconfiguration_id: Token
    new_digest: Digest
    phases_s: dict[str, Seconds]
    """detect, plan, abort, rebuild, move, redo, total."""
    bytes_moved: Count
    proof: dict[str, bool]
    """Checks that must all be true: layers_complete, samples_once, digests_equal, plan_digest_equal."""
    lost_iterations: Count = 0
    """Committed iterations that were given up and are done again, because all holders of a part of their state died."""
    state_source: StateSource = "live"


class ReconfigurationRejected(_Event):
    """A new plan was refused by an agent or a worker; the old one stays."""

    schema_name: ClassVar[str] = "ReconfigurationRejected.v1"

    reconfiguration_id: Token
    reason: Text


class ReconfigurationSuperseded(_Event):
    """A newer reconfiguration took the place of one that was not finished."""

    schema_name: ClassVar[str] = "ReconfigurationSuperseded.v1"

    reconfiguration_id: Token
    by_reconfiguration_id: Token
    reason: Text


class DecisionMade(_Event):
    """The scheduler weighed a change that nobody has to make at once: what it does, and why not something else."""

    schema_name: ClassVar[str] = "DecisionMade.v1"

    decision_id: Token
    trigger: Text
    """What made it think: `rank 5 slow (p 0.50)`, `rank 3 returned`."""
    action: Literal["act", "advise", "wait", "stay"]
    """The plan is on its way, would be in another mode, may be later, or there is none that is worth it."""
    reason: Text
    difference: Text = ""
    predicted_tokens_per_s: Finite | None = None
    """With the best plan."""
    stay_tokens_per_s: Finite | None = None
    """With the plan in force."""
    bound_tokens_per_s: Finite | None = None
    again_in_s: Seconds | None = None
    """`wait`: when it is weighed again at the latest."""


class DecisionClosed(_Event):
    """Advice or a wait is over: acted on, approved, vetoed, or overtaken by events."""

    schema_name: ClassVar[str] = "DecisionClosed.v1"

    decision_id: Token
    outcome: Literal["acted", "approved", "vetoed", "superseded"]
    reason: Text = ""


class ModeChanged(_Event):
    """An operator, or the breaker, changed what the scheduler may do on its own."""

    schema_name: ClassVar[str] = "ModeChanged.v1"

    mode: Literal["act", "advise", "off"]
    held: bool = False
    """No change that can wait is made for `hold_s`, or (None) until the hold is lifted."""
    hold_s: Seconds | None = None
    breaker_tripped: bool = False
    evicted: tuple[RankField, ...] = ()
    """Devices that are not to be used."""
    thresholds: dict[str, Finite] = Field(default_factory=dict)
    """Those that differ from their defaults."""
    reason: Text = ""


class JobFinished(_Event):
    """Every rank has committed the last iteration."""

    schema_name: ClassVar[str] = "JobFinished.v1"

    iterations: Count
    committed: Count
    samples_expected: Count
    samples_once: Count
    final_loss: Finite | None


class JobFailed(_Event):
    """The job ended before its last iteration."""

    schema_name: ClassVar[str] = "JobFailed.v1"

    reason: Text


# --- asked for by people (the audit trail; written by the gateway) --------------------------------------------------


class ActionRequested(_Event):
    """Somebody asked for an action. Stored before the request goes to the scheduler: nothing happens unrecorded."""

    schema_name: ClassVar[str] = "ActionRequested.v1"

    action: Token
    """Verb of the request, such as RequestStop."""
    actor: Text
    """Name of the token that was shown; `anonymous` where none is asked for."""
    role: Token
    client: Text = ""
    """Address of the other end of the connection."""
    reason: Text = ""
    parameters: JsonObject = Field(default_factory=dict)


class ActionAnswered(_Event):
    """What became of it; same correlation id."""

    schema_name: ClassVar[str] = "ActionAnswered.v1"

    action: Token
    actor: Text
    accepted: bool
    detail: Text = ""
    """Why it was refused, or that nobody answered (then it may still be carried out)."""
    reconfiguration_id: Token | None = None

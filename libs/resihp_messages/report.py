"""Beats and reports of agents, scores of the detector: what is said periodically."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from resihp_messages.envelope import Body, Kind
from resihp_messages.ids import Count, Distances, Finite, RankField, Seconds, Text, Token, Wire

REQUIRED_COLUMNS = (
    "step_s",
    "forward_s",
    "backward_s",
    "tp_wait_s",
    "pp_wait_s",
    "dp_wait_s",
    "tokens",
    "sum_sq_len",
    "rss_bytes",
)
"""Of an `IterationReport`: one value per rank."""

OPTIONAL_COLUMNS = (
    "unit_tokens",
    "unit_sum_sq_len",
    "unit_forward_s",
    "unit_backward_s",
    "unit_weight_s",
    "fingerprints",
    "distances",
    "phases_s",
    "probe_s",
    "link_wait_s",
)

WorkerState = Literal["starting", "waiting", "rebuilding", "moving", "training", "finishing", "standby", "stopped"]


class WorkerBeat(Wire):
    """One worker as its agent sees it."""

    job: Token
    rank: RankField
    pid: Count
    state: WorkerState
    epoch: Count
    iteration: Count
    ops: Count
    """Operations of the program executed since the process started; grows while the worker makes progress."""
    silent_s: Seconds
    """Age of the last sign of life on the worker's progress page."""


class NodeBeat(Body):
    """Core NATS, newest wins. Job token: `_fleet`."""

    schema_name: ClassVar[str] = "NodeBeat.v1"
    kind: ClassVar[Kind] = Kind.BEAT

    node: Token
    sequence: Count
    """Grows by one per beat of this incarnation; gaps are lost beats."""
    period_s: Seconds
    host: Text
    comm_host: Text
    """Address at which other nodes reach this node's workers."""
    num_slots: Annotated[int, Field(ge=1)]
    """Devices of the node."""
    store_address: Text
    """`host:port` of the rendezvous store on this node, outside all workers."""
    workers: tuple[WorkerBeat, ...] = ()


class IterationReport(Body):
    """One message per node and committed iteration, columnar over the node's ranks (all lists have equal length).

    `forward_s`/`backward_s` are compute only: transfer and collective waits are in the `*_wait_s` columns.
    """

    schema_name: ClassVar[str] = "IterationReport.v1"
    kind: ClassVar[Kind] = Kind.REPORT

    node: Token
    iteration: Annotated[int, Field(ge=1)]
    ranks: tuple[RankField, ...]
    step_s: tuple[Seconds, ...]
    forward_s: tuple[Seconds, ...]
    backward_s: tuple[Seconds, ...]
    tp_wait_s: tuple[Seconds, ...]
    pp_wait_s: tuple[Seconds, ...]
    dp_wait_s: tuple[Seconds, ...]
    tokens: tuple[Count, ...]
    """Tokens that this rank's forward passes processed."""
    sum_sq_len: tuple[Count, ...]
    """Sum over its documents of the squared length: the attention work."""
    rss_bytes: tuple[Count, ...]
    loss: Finite | None
    """Mean over the global batch's tokens; None when it is not finite."""
    global_tokens: Count
    samples_expected: Count
    """Documents in the global batch."""
    samples_once: Count
    """Documents that the vote counted exactly once."""
    unit_tokens: tuple[tuple[Count, ...], ...] = ()
    """Per rank, of every micro-batch that it executed, in the order of the forwards, as are the columns below. Empty
    from workers that do not say."""
    unit_sum_sq_len: tuple[tuple[Count, ...], ...] = ()
    unit_forward_s: tuple[tuple[Seconds, ...], ...] = ()
    unit_backward_s: tuple[tuple[Seconds, ...], ...] = ()
    """Whole, or both halves of a split backward together."""
    unit_weight_s: tuple[tuple[Seconds, ...], ...] = ()
    """Split backward only: its weight half; else each empty."""
    fingerprints: tuple[dict[str, str], ...] = ()
    """Per rank, in some iterations: bucket of equal owners -> 64-bit digest of its slices' state, in hex. Two ranks
    that name the same bucket must name the same digest."""
    distances: tuple[dict[str, Distances], ...] = ()
    """Per rank, in the iteration from which replicas that differed went back, once it is redone: bucket -> how far the
    rank's earlier state was from the redone one. The owner that is farther held the damage."""
    probe_s: tuple[Seconds, ...] = ()
    """Per rank, in some iterations: seconds of the compute probe (docs/detection.md); 0: none."""
    link_wait_s: tuple[dict[str, Seconds], ...] = ()
    """Per rank: communication group -> seconds waited in it."""
    phases_s: tuple[dict[str, Seconds], ...] = ()
    """Per rank: announced work besides training (`snapshot`, `checkpoint`, `evaluation`) -> seconds of the training
    thread that it took in this iteration, or before it (`evaluation`). An iteration with such work is not slow."""
    virtual_clock: bool = False
    """Compute seconds are those of virtual devices, not of the cores that did the work."""
    processor_time: bool = False
    """Compute seconds are processor time of cores that other processes use too (CPU workers on the real clock)."""
    reconfiguration_id: Text = ""
    """Of the plan that the epoch runs: tells the epochs of two runs of one job apart."""

    @model_validator(mode="after")
    def _columns(self) -> IterationReport:
        n = len(self.ranks)
        for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS):
            optional = name in OPTIONAL_COLUMNS
            if len(getattr(self, name)) != n and not (optional and not getattr(self, name)):
                raise ValueError(f"column {name} has {len(getattr(self, name))} entries for {n} ranks")
        return self


Speed = Annotated[float, Field(ge=0.0, le=4.0, allow_inf_nan=False)]


class HealthScores(Body):
    """Speed of every judged device in one iteration, columnar (all given lists have equal length). Newest wins."""

    schema_name: ClassVar[str] = "HealthScores.v1"
    kind: ClassVar[Kind] = Kind.SCORE

    iteration: Annotated[int, Field(ge=1)]
    ranks: tuple[RankField, ...]
    p: tuple[Speed, ...]
    """Throughput relative to the device's own healthy self, over the iterations since its last change."""
    p_low: tuple[Speed, ...] = ()
    p_high: tuple[Speed, ...] = ()
    """95 % interval of p."""
    confidence: tuple[Speed, ...] = ()
    """That the device is slow: 0 for one that looks healthy."""

    @model_validator(mode="after")
    def _columns(self) -> HealthScores:
        n = len(self.ranks)
        for name in ("p", "p_low", "p_high", "confidence"):
            if len(getattr(self, name)) not in ((n,) if name == "p" else (0, n)):
                raise ValueError(f"column {name} has {len(getattr(self, name))} entries for {n} ranks")
        return self

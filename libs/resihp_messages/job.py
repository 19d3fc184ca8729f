"""The job file: what a user asks to have trained. One model serves TOML, REST and the bus.

Unknown keys are errors here (a typo in a job file must not pass silently); every default is stated with its unit.
"""

from __future__ import annotations

import itertools
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from resihp_messages.ids import Finite, RankField, Seconds, Token


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Positive = Annotated[int, Field(ge=1)]


class ModelConfig(_Strict):
    """A LLaMA-style decoder. Field names equal `resihp_plan.ModelSpec`, which is built from them."""

    num_layers: Positive = 8
    hidden: Positive = 128
    """Width of the residual stream."""
    num_heads: Positive = 8
    num_kv_heads: Positive = 4
    """Key/value head groups: the grain of the tensor split of attention."""
    ffn_hidden: Positive = 352
    """Hidden units of the gated MLP (SwiGLU)."""
    mlp_block: Positive = 16
    """Grain of the tensor split of the MLP, in hidden units; divides ffn_hidden."""
    vocab_size: Positive = 256
    vocab_block: Positive = 16
    """Grain of the tensor split of embedding and head, in tokens; divides vocab_size."""
    rope_theta: Finite = 10_000.0
    norm_eps: Finite = 1e-5
    init_std: Finite = 0.02
    qkv_bias: bool = False
    """Biases of the q, k and v projections (Qwen2)."""
    tied_embeddings: bool = False
    """The head is the embedding: one tensor, held by the first and the last stage."""
    rope_scaling: Literal["none", "linear", "llama3"] = "none"
    """How rotary frequencies are stretched to a longer context: all of them by `rope_factor`, or LLaMA 3's way."""
    rope_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    rope_low_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    rope_high_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    rope_original_context: Positive = 8192
    """Context of the first training, in tokens (only `llama3`, like the two factors above)."""
    dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Probability with which an element of the embedding or of a layer's two outputs is zeroed. The mask depends on
    (seed, document, position, layer) only, so it is the same in every layout."""
    recompute: bool = False
    """Keep only the input of every layer and compute the layer again in the backward pass (activation checkpointing):
    less memory, a third more work."""
    autocast: bool = False
    """Matrix products and attention in bfloat16. Parameters, moments, gradient sums, the residual stream and all that
    crosses between ranks stay float32. Replicas remain equal bit by bit; layouts agree to bfloat16's rounding only."""
    hf: str | None = None
    """Folder of a Hugging Face model (`config.json` and safetensors) that the initial parameters come from; every
    worker reads its own slices of it. None: they are drawn from the seed."""

    @model_validator(mode="after")
    def _divides(self) -> ModelConfig:
        rules = (
            ("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads),
            ("hidden", self.hidden, "num_heads", self.num_heads),
            ("ffn_hidden", self.ffn_hidden, "mlp_block", self.mlp_block),
            ("vocab_size", self.vocab_size, "vocab_block", self.vocab_block),
        )
        for big, a, small, b in rules:
            if a % b:
                raise ValueError(f"model.{big} ({a}) must be a multiple of model.{small} ({b})")
        if (self.hidden // self.num_heads) % 2:
            raise ValueError(f"model.hidden / model.num_heads ({self.hidden // self.num_heads}) must be even for RoPE")
        if self.rope_low_freq_factor >= self.rope_high_freq_factor:
            low, high = self.rope_low_freq_factor, self.rope_high_freq_factor
            raise ValueError(f"model.rope_low_freq_factor ({low}) must be below model.rope_high_freq_factor ({high})")
        return self


class ParallelConfig(_Strict):
    """Degrees of the initial, healthy plan."""

    tp: Positive = 2
    pp: Positive = 2
    dp: Positive = 2
    schedule: Literal["1f1b", "zb-h1"] = "1f1b"
    """Order of the operations: one forward and one backward in turn, or zero bubble H1 with split backward, which has
    smaller bubbles and keeps activations longer on later stages."""

    memory_bytes: Annotated[int, Field(ge=1)] | None = None
    """Usable memory of every device: no plan may need more (`resihp_plan.MemoryModel`). None: not limited."""

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp * self.dp


class BatchConfig(_Strict):
    """The global batch of one iteration; it never depends on the layout."""

    micro_batches: Positive = 8
    tokens_per_micro_batch: Positive = 128
    """Token budget N of a micro-batch (sum of its document lengths is at most N)."""


class OptimizerConfig(_Strict):
    """AdamW (Loshchilov & Hutter 2019) with decoupled weight decay and clipping by global norm."""

    lr: Finite = 5e-4
    """At 1e-3 the default model trains at the edge of stability: a last-bit difference grows a millionfold within 40
    iterations (to 5e-10; at 5e-4 it stays at 2e-15), and parity with another layout could not be shown."""
    beta1: Finite = 0.9
    beta2: Finite = 0.95
    eps: Finite = 1e-8
    weight_decay: Finite = 0.1
    clip_norm: Finite = 1.0
    """Gradients are scaled down to this global L2 norm; 0 switches clipping off."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Iterations in which the learning rate rises linearly to `lr`."""
    cosine_until: Annotated[int, Field(ge=0)] = 0
    """Iteration at which a cosine has brought the learning rate down to `lr_floor * lr`, where it stays (Loshchilov &
    Hutter 2017). 0: it stays at `lr`."""
    lr_floor: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.1

    @model_validator(mode="after")
    def _decays_after_warmup(self) -> OptimizerConfig:
        if 0 < self.cosine_until <= self.warmup:
            raise ValueError(
                f"optimizer.cosine_until ({self.cosine_until}) must exceed optimizer.warmup ({self.warmup})"
            )
        return self


class DataConfig(_Strict):
    """Where training text comes from, and what its tokens are."""

    path: str | None = None
    """A text file, a JSONL or parquet file with a text per line or row, or a folder of such files. None: the source
    files of the running interpreter's standard library."""
    text_field: str = "text"
    """The field of a JSONL line, or the column of a parquet file, that holds the text."""
    tokenizer: str | None = None
    """A Hugging Face `tokenizer.json`, or the folder of one. None: tokens are bytes."""


class FaultPoint(StrEnum):
    """Where a scripted fault strikes its victim: inside iteration K, or (`of_change`) in the first change of plan that
    comes there once K iterations are committed."""

    COMPUTE = "compute"
    GRADIENT = "gradient"
    VOTE = "vote"
    OPTIMIZER = "optimizer"
    PREPARE = "prepare"
    """A planned change: before it says that it holds the plan."""
    SWITCH = "switch"
    """A planned change: the vote has chosen the plan, the epoch is not left yet."""
    MOVE = "move"
    """Any change: the members have met, no state has moved yet."""
    READY = "ready"
    """Any change: it has the new shards and says so; the others may see that or not."""
    FIRST_VOTE = "first_vote"
    """Any change: as `vote`, in the first iteration under the new plan."""

    @property
    def of_change(self) -> bool:
        """Whether it is reached once per change of plan and not once per iteration."""
        return self not in ITERATION_POINTS


ITERATION_POINTS = (FaultPoint.COMPUTE, FaultPoint.GRADIENT, FaultPoint.VOTE, FaultPoint.OPTIMIZER)
"""Reached once in every iteration."""


class ClockConfig(_Strict):
    """On what clock devices compute."""

    virtual: bool = False
    """Each compute segment is padded to its nominal work / (flops_per_s x p): faithful ratios of slow and healthy
    devices with more workers than cores. Everything that reports says so."""
    flops_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4e9
    """Of a healthy device (p = 1), on the virtual clock. So low that all workers together keep up on two cores."""


class TelemetryConfig(_Strict):
    """What ranks report beyond the sums of an iteration."""

    fingerprint_every: Annotated[int, Field(ge=0)] = 50
    """Every so many iterations each rank digests its state, so that replicas that silently diverge are noticed.
    0 switches it off."""


class SnapshotConfig(_Strict):
    """Copies of the training state in the memory of other devices, for when all holders of a part of it die."""

    every: Annotated[int, Field(ge=0)] = 50
    """Every so many iterations each rank copies its parameters and moments, beside the training, to a rank on another
    node, in another replica and stage where there is one. At most this many iterations are lost, plus those that one
    copy takes beyond the first. Costs memory for two to six more copies of a rank's state: the newest complete one, the
    one under way, and an older one to go back to if fingerprints show that replicas differ. 0 switches it off."""
    apart_s: Seconds = 60.0
    """Seconds of training that are at least between two copies, which come at a multiple of `every` nevertheless. A
    copy costs as much however short the iterations are: a fifth of one of 512 tokens. 0, also if only `every` is given:
    exactly every so many iterations."""

    @model_validator(mode="before")
    @classmethod
    def _is_exact(cls, given: Any) -> Any:
        return {"apart_s": 0.0, **given} if isinstance(given, dict) and "every" in given else given


class CheckpointConfig(_Strict):
    """Copies of the training state on disk, in a folder that all nodes share."""

    path: str | None = None
    """The folder; None: no checkpoints."""
    every: Positive = 100
    """Iterations between two checkpoints; they are written beside the training."""
    keep: Positive = 2
    """Complete checkpoints that stay; older ones are deleted."""
    resume: bool = False
    """Begin with the newest checkpoint in the folder, whatever layout wrote it, instead of with fresh parameters."""

    @model_validator(mode="after")
    def _has_folder(self) -> CheckpointConfig:
        if self.resume and self.path is None:
            raise ValueError("checkpoints.resume needs checkpoints.path")
        return self


class EvaluationConfig(_Strict):
    """The loss on text that is not trained on, now and then, through the same plan with forward passes only."""

    every: Annotated[int, Field(ge=0)] = 0
    """Every so many iterations, before the next one begins. 0 switches it off."""
    path: str | None = None
    """The held-out text, in the forms of `data.path`; the training text is not touched, whatever is in here."""
    batches: Positive = 1
    """Global batches of the training batch's size, always the same ones."""

    @model_validator(mode="after")
    def _has_text(self) -> EvaluationConfig:
        if self.every and self.path is None:
            raise ValueError("evaluation.every needs evaluation.path, a text that is not trained on")
        return self


class ScriptedFault(_Strict):
    """A fault that a worker inflicts on itself at an exact point: a real SIGKILL or SIGSTOP of its own process, or on
    the virtual clock a slower device."""

    kind: Literal["kill", "freeze", "slow", "slow_link"]
    factor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Only `slow` and `slow_link`: the speed p of device or link from then on, relative to its healthy one."""
    for_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Only `slow` and `slow_link`: for how long; 0 means for good."""
    rank: RankField
    peer: RankField | None = None
    """Only `slow_link`: the other end of the pipeline edge that transfers more slowly, in both directions."""
    iteration: Annotated[int, Field(ge=1)]
    """Counted from 1: `kill 3@15` strikes while the 15th optimizer step is being made, `kill 3@15:switch` at the first
    planned change after it."""
    point: FaultPoint = FaultPoint.COMPUTE
    start: Annotated[int, Field(ge=0)] = 0
    """Which start of the rank strikes: 0 is the worker that came with the job, 1 its first replacement."""

    @model_validator(mode="after")
    def _has_peer(self) -> ScriptedFault:
        if (self.kind == "slow_link") != (self.peer is not None):
            raise ValueError(f"faults: peer belongs to slow_link and to nothing else, not to {self.kind}")
        if self.peer == self.rank:
            raise ValueError(f"faults: rank and peer of a slow link are two ranks, not {self.rank} twice")
        return self

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks at which it strikes."""
        return (self.rank,) if self.peer is None else (self.rank, self.peer)


class TimeoutConfig(_Strict):
    """The ladder of timeouts; each must exceed the one above it (checked)."""

    stall_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.5
    """A worker that shows no sign of life (no tick of its progress page) for this long is frozen: fenced by SIGKILL."""
    node_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    """A node whose beats stay away for this long (beyond the observed jitter) is lost."""
    plan_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Survivors wait this long for a new plan before they stop with an error."""
    backend_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    """The collective library's own timeout: a backstop that bounds leaks, never the detector."""

    @model_validator(mode="after")
    def _ladder(self) -> TimeoutConfig:
        names = ("stall_s", "node_s", "plan_s", "backend_s")
        for a, b in itertools.pairwise(names):
            if getattr(self, a) >= getattr(self, b):
                raise ValueError(
                    f"timeouts.{a} ({getattr(self, a)}) must be smaller than timeouts.{b} ({getattr(self, b)})"
                )
        return self


ENDLESS = 10**9
"""Iterations of a job whose length nobody has told us."""


class AttachedConfig(_Strict):
    """A job that somebody else launched: watched, never started, fenced or changed."""

    order: tuple[Literal["pp", "dp", "tp"], ...] = ("pp", "dp", "tp")
    """How ranks run through the parallel axes, the slowest-varying one first."""

    @model_validator(mode="after")
    def _permutes(self) -> AttachedConfig:
        if sorted(self.order) != ["dp", "pp", "tp"]:
            raise ValueError(f"attached.order {self.order} must name dp, pp and tp once each")
        return self


class JobSpec(_Strict):
    """One training job."""

    name: Token = "demo"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 7
    iterations: Positive = 40
    dtype: Literal["float32", "float64"] = "float32"
    backend: Literal["gloo", "nccl"] = "gloo"
    """Where tensors live and who carries them: in host memory by gloo, or on one GPU per worker by NCCL (docs/models.md
    says what of that was ever run)."""
    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    data: DataConfig = DataConfig()
    clock: ClockConfig = ClockConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    snapshots: SnapshotConfig = SnapshotConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    faults: tuple[ScriptedFault, ...] = ()
    rejoin: Literal["automatic", "manual"] = "automatic"
    """Whether lost ranks are started again on their own when their node (or a new one) offers slots."""
    attached: AttachedConfig | None = None
    """Given if the job was launched by somebody else; then only names, degrees and timeouts above mean something."""
    output_dir: str | None = None
    """Folder for the final shards (one safetensors file per rank); None keeps nothing."""

    @model_validator(mode="after")
    def _fits(self) -> JobSpec:
        m, p, b = self.model, self.parallel, self.batch
        if m.autocast and self.dtype != "float32":
            raise ValueError(f"model.autocast needs dtype float32 for its master weights, not {self.dtype}")
        if self.backend == "nccl" and self.clock.virtual:
            raise ValueError("clock.virtual stands for devices that are not there: not with backend nccl")
        if p.pp > m.num_layers:
            raise ValueError(f"parallel.pp ({p.pp}) exceeds model.num_layers ({m.num_layers})")
        if p.tp > m.num_kv_heads:
            raise ValueError(
                f"parallel.tp ({p.tp}) exceeds model.num_kv_heads ({m.num_kv_heads}): a key/value head and its query "
                "heads lie on one device (copies of them are not implemented); use more stages or replicas"
            )
        if p.dp > b.micro_batches:
            raise ValueError(f"parallel.dp ({p.dp}) exceeds batch.micro_batches ({b.micro_batches})")
        for f in self.faults:
            for rank in f.victims:
                if rank >= p.num_devices:
                    raise ValueError(f"faults: rank {rank} is not below tp*pp*dp = {p.num_devices}")
            if f.kind in ("slow", "slow_link") and not self.clock.virtual:
                raise ValueError(f"faults: {f.kind} {f.rank}@{f.iteration} needs clock.virtual = true")
            if f.iteration > self.iterations:
                raise ValueError(f"faults: iteration {f.iteration} is beyond iterations = {self.iterations}")
        return self

    @property
    def shares_cores(self) -> bool:
        """Whether workers share the processors of their host: what one leaves, the others get. (Their computing is
        real, and not on GPUs.)"""
        return self.backend != "nccl" and not self.clock.virtual and self.attached is None

    @property
    def can_roll_back(self) -> bool:
        """Whether the job may go on after all holders of a part of its state died."""
        return self.snapshots.every > 0 or self.checkpoints.path is not None

    @property
    def output_path(self) -> Path | None:
        return Path(self.output_dir) if self.output_dir else None

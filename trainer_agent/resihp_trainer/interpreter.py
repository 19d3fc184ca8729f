"""Runs a rank's program of one iteration: forwards, backwards and transfers in the order of `resihp_plan.program`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from resihp_plan import MicroBatchWork, Op, OpKind
from resihp_trainer.comm.port import WaitSeconds
from resihp_trainer.comm.streams import StreamWaits
from resihp_trainer.device import VirtualClock
from resihp_trainer.model import MicroBatch, Product, Stage, WeightGradients, accumulate
from resihp_trainer.pipeline import Pipeline

Unit = tuple[int, int]
"""(replica, micro-batch) of this rank's stage; of another replica if it is migrated."""


FORWARD_KINDS = (OpKind.FORWARD, OpKind.RECV_ACT, OpKind.SEND_ACT)

_Begun = tuple[float, float]
"""The clock and the thread's processor seconds when a segment began."""


@dataclass
class Waits:
    """Seconds waited since the iteration began, by axis; `take` reads and clears the communicator's counters."""

    take: Callable[[], WaitSeconds]
    tp_s: float = 0.0
    pp_s: float = 0.0
    dp_s: float = 0.0

    def update(self) -> float:
        """Add what was waited since the last call and return the tensor-parallel part of it."""
        new = self.take()
        self.tp_s += new.tp
        self.pp_s += new.pp
        self.dp_s += new.dp
        return new.tp

    def reset(self) -> None:
        """A new iteration begins."""
        self.take()
        self.tp_s = self.pp_s = self.dp_s = 0.0


class Segment(NamedTuple):
    """One compute operation. Seconds are compute only: waits inside are subtracted."""

    kind: OpKind
    unit: Unit
    tokens: int
    sum_sq_len: int
    seconds: float


@dataclass
class Work:
    """What one iteration's program did on this rank."""

    segments: list[Segment] = field(default_factory=list)
    """In the order of their execution."""
    losses: list[Tensor] = field(default_factory=list)
    """Of the micro-batches in `finished`, each summed over tokens; none on all but the last stage."""
    finished: list[Unit] = field(default_factory=list)
    """Micro-batches whose loss this rank computed."""
    _seconds: list[Callable[[], float]] = field(default_factory=list)
    """Of the segments, where the device times them: to be asked when it has come there."""

    @property
    def loss(self) -> float:
        """Summed over tokens; waits for the device."""
        return sum((float(loss) for loss in self.losses), 0.0)

    def defer(self, segment: Segment, seconds: Callable[[], float]) -> None:
        """A segment whose `seconds` can be asked for once the device has come there."""
        self.segments.append(segment)
        self._seconds.append(seconds)

    def resolve(self) -> None:
        """The device has done it all: learn how long its segments took."""
        if self._seconds:
            timed = zip(self.segments, self._seconds, strict=True)
            self.segments = [segment._replace(seconds=seconds()) for segment, seconds in timed]
            self._seconds = []

    def columns(self) -> Columns:
        """What is reported of the segments, in one pass: it is asked for in every iteration."""
        found = Columns()
        for kind, unit, tokens, sum_sq_len, seconds in self.segments:
            if kind is OpKind.FORWARD:
                found.tokens.append(tokens)
                found.sum_sq_len.append(sum_sq_len)
                found.forward_s[unit] = seconds
                continue
            found.backward_s[unit] = found.backward_s.get(unit, 0.0) + seconds
            if kind is OpKind.BACKWARD_WEIGHT:
                found.weight_s[unit] = seconds
        return found


@dataclass
class Columns:
    """One entry per executed unit, in the order of the forwards. Seconds are by unit, which has one operation of each
    kind at most."""

    tokens: list[int] = field(default_factory=list)
    sum_sq_len: list[int] = field(default_factory=list)
    forward_s: dict[Unit, float] = field(default_factory=dict)
    backward_s: dict[Unit, float] = field(default_factory=dict)
    """Whole backwards, or both halves of split ones."""
    weight_s: dict[Unit, float] = field(default_factory=dict)

    def in_order(self, seconds: Mapping[Unit, float]) -> tuple[float, ...]:
        """One of the columns of seconds; empty if nothing was of its kind."""
        return tuple(seconds[unit] for unit in self.forward_s) if seconds else ()


@dataclass
class _Open:
    """Units under way on this rank."""

    received: dict[Unit, Tensor] = field(default_factory=dict)
    outputs: dict[Unit, Tensor] = field(default_factory=dict)
    gradients: dict[Unit, Tensor] = field(default_factory=dict)
    products: dict[Unit, tuple[Product, ...]] = field(default_factory=dict)


@dataclass
class Interpreter:
    """Executes operations with one stage's model; gradients accumulate in `leaves`, autograd leaves over the shards.

    A migrated unit of another replica is run like an own one: its gradients join this replica's sums, and the sum over
    the replicas counts them once.
    """

    stage: Stage
    pipeline: Pipeline
    leaves: Mapping[str, Tensor]
    waits: Waits
    operation: Callable[[], None]
    """Called after each computation: progress. (While it waits for a transfer, a rank shows life by itself.)"""
    clock: Callable[[], float] = time.perf_counter
    weight_gradients: WeightGradients | None = None
    """With split backward: where the stage's linear layers leave their weight halves."""
    virtual: VirtualClock | None = None
    streams: StreamWaits | None = None
    """What times segments on a device that runs beside the host; None: the host computes."""

    def run(
        self, ops: Sequence[Op], micro_batches: Mapping[Unit, MicroBatch], before_forward: Callable[[], None]
    ) -> Work:
        """Run one iteration; micro-batches without tokens are skipped on every rank. `before_forward` is called in
        front of each forward. Raises what `Pending.wait` raises; the gradients are then to be dropped."""
        work, under_way = Work(), _Open()
        self.clear()
        for op in ops:
            unit = op.replica, op.micro_batch
            if micro_batches[unit].num_tokens:
                if op.kind is OpKind.FORWARD:
                    before_forward()
                self._execute(op, unit, micro_batches[unit], under_way, work)
                if op.kind.is_compute:
                    self.operation()
        self.pipeline.finish()
        self.waits.update()
        return work

    def evaluate(self, ops: Sequence[Op], micro_batches: Mapping[Unit, MicroBatch]) -> Work:
        """The forward half of the same program, without dropout and without a trace: parameters and gradients stay as
        they are. What is left of a valid program is valid: both ends of an edge keep their order."""
        work, under_way = Work(), _Open()
        with torch.no_grad(), self.stage.without_dropout():
            for op in ops:
                unit = op.replica, op.micro_batch
                if op.kind in FORWARD_KINDS and micro_batches[unit].num_tokens:
                    self._execute(op, unit, micro_batches[unit], under_way, work)
                    used = under_way.received if op.kind is OpKind.FORWARD else under_way.outputs
                    if op.kind is not OpKind.RECV_ACT:
                        used.pop(unit, None)
                    self.operation()
        self.pipeline.finish()
        return work

    def clear(self) -> None:
        """Give the gradient sums up."""
        for leaf in self.leaves.values():
            leaf.grad = None

    def gradients(self) -> Mapping[str, Tensor]:
        """Gradient sums of the last run; zeros where nothing flowed (a replica without micro-batches)."""
        return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in self.leaves.items()}

    def take_links(self) -> dict[str, float]:
        """Seconds of the last iteration by communication group, of those in which the shortest wait of the members is
        the transfer time: pipeline edges on the virtual clock, the TP group on the real one."""
        if self.pipeline.links is not None:
            return self.pipeline.links.take()
        group = self.pipeline.tp_group
        return {group.name: self.waits.tp_s} if group is not None and self.waits.tp_s > 0 else {}

    def _execute(self, op: Op, unit: Unit, batch: MicroBatch, under_way: _Open, work: Work) -> None:
        if op.kind.is_compute:
            if self.streams is None:
                begun = self._begin()
                self._compute(op.kind, unit, batch, under_way)
                self._note(op.kind, unit, batch, work, begun)
            else:
                end = self.streams.begin()
                self._compute(op.kind, unit, batch, under_way)
                work.defer(Segment(op.kind, unit, batch.num_tokens, batch.sum_sq_len, 0.0), end())
            if op.kind is OpKind.FORWARD and self.stage.is_last:
                work.losses.append(under_way.outputs[unit].detach())
                work.finished.append(unit)
            return
        assert op.peer is not None
        match op.kind:
            case OpKind.RECV_ACT:
                x_TD = self.pipeline.receive(batch.num_tokens, op.place, op.peer)
                under_way.received[unit] = x_TD.requires_grad_()
            case OpKind.SEND_ACT:
                self.pipeline.send(under_way.outputs[unit].detach(), op.place, op.peer)
            case OpKind.RECV_GRAD:
                under_way.gradients[unit] = self.pipeline.receive(batch.num_tokens, op.place, op.peer)
            case OpKind.SEND_GRAD:
                grad = under_way.received.pop(unit).grad
                assert grad is not None
                self.pipeline.send(grad, op.place, op.peer)

    def _compute(self, kind: OpKind, unit: Unit, batch: MicroBatch, under_way: _Open) -> None:
        if kind is OpKind.FORWARD:
            under_way.outputs[unit] = self.stage.forward(batch, under_way.received.get(unit))
        elif kind is OpKind.BACKWARD_WEIGHT:
            accumulate(under_way.products.pop(unit))
        else:
            output, gradient = under_way.outputs.pop(unit), under_way.gradients.pop(unit, None)
            # The gradient of sum(output * gradient) is `gradient`, exactly. Given to `backward` directly, torch would
            # first import its symbolic shapes: 1.5 s without a sign of life and 30 MB.
            torch.autograd.backward(output if gradient is None else torch.sum(output * gradient))
            if self.weight_gradients is not None:
                under_way.products[unit] = self.weight_gradients.take()

    def _begin(self) -> _Begun:
        if self.virtual is None:
            return 0.0, time.thread_time()
        self.waits.update()
        return self.clock(), time.thread_time()

    def _note(self, kind: OpKind, unit: Unit, batch: MicroBatch, work: Work, begun: _Begun) -> None:
        """Note the segment: the processor seconds of this thread. (What others did on this core meanwhile, or with a
        lock that this thread needs, is no part of the device.) On a virtual clock wait until it has taken its time."""
        start, busy = begun
        seconds = time.thread_time() - busy
        if self.virtual is not None:
            spent_s = max(0.0, self.clock() - start - self.waits.update())
            seconds = self.virtual.pad(MicroBatchWork(batch.num_tokens, batch.sum_sq_len), kind, spent_s, seconds)
        work.segments.append(Segment(kind, unit, batch.num_tokens, batch.sum_sq_len, seconds))

"""Runs a rank's program of one iteration: forwards, backwards and transfers in the order of `resihp_plan.program`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resihp_plan import Op, OpKind
from resihp_trainer.comm.port import WaitSeconds
from resihp_trainer.model import MicroBatch, Stage
from resihp_trainer.pipeline import Pipeline


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


@dataclass
class Work:
    """What one iteration's program did on this rank. Seconds are compute only: waits inside are subtracted."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    tokens: int = 0
    sum_sq_len: int = 0
    loss: float = 0.0
    """Summed over tokens; 0 on all but the last stage."""
    finished: list[int] = field(default_factory=list)
    """Micro-batches whose loss this rank computed."""


@dataclass
class Interpreter:
    """Executes operations with one stage's model; gradients accumulate in `leaves`, autograd leaves over the shards."""

    stage: Stage
    pipeline: Pipeline
    leaves: Mapping[str, Tensor]
    waits: Waits
    operation: Callable[[], None]
    """Called after each operation: progress."""
    clock: Callable[[], float] = time.perf_counter

    def run(
        self, ops: Sequence[Op], micro_batches: Sequence[MicroBatch], before_forward: Callable[[int], None]
    ) -> Work:
        """Run one iteration; micro-batches without tokens are skipped on every rank. `before_forward(micro_batch)` is
        called in front of each forward. Raises what `Pending.wait` raises; the gradients are then to be dropped."""
        work = Work()
        received: dict[int, Tensor] = {}
        outputs: dict[int, Tensor] = {}
        gradients: dict[int, Tensor] = {}
        for leaf in self.leaves.values():
            leaf.grad = None
        for op in ops:
            batch, m = micro_batches[op.micro_batch], op.micro_batch
            if not batch.num_tokens:
                continue
            match op.kind:
                case OpKind.RECV_ACT:
                    assert op.peer is not None
                    received[m] = self.pipeline.receive(batch.num_tokens, op.place, op.peer).requires_grad_()
                case OpKind.FORWARD:
                    before_forward(m)
                    outputs[m] = self._forward(batch, received.get(m), work)
                    if self.stage.is_last:
                        work.loss += float(outputs[m].detach())
                        work.finished.append(m)
                case OpKind.SEND_ACT:
                    assert op.peer is not None
                    self.pipeline.send(outputs[m].detach(), op.place, op.peer)
                case OpKind.RECV_GRAD:
                    assert op.peer is not None
                    gradients[m] = self.pipeline.receive(batch.num_tokens, op.place, op.peer)
                case OpKind.BACKWARD:
                    self._backward(outputs.pop(m), gradients.pop(m, None), work)
                case OpKind.SEND_GRAD:
                    assert op.peer is not None
                    grad = received.pop(m).grad
                    assert grad is not None
                    self.pipeline.send(grad, op.place, op.peer)
            self.operation()
        self.pipeline.finish()
        self.waits.update()
        return work

    def gradients(self) -> Mapping[str, Tensor]:
        """Gradient sums of the last run; zeros where nothing flowed (a replica without micro-batches)."""
        return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in self.leaves.items()}

    def _forward(self, batch: MicroBatch, x_TD: Tensor | None, work: Work) -> Tensor:
        self.waits.update()
        start = self.clock()
        out = self.stage.forward(batch, x_TD)
        seconds = self.clock() - start
        work.forward_s += max(0.0, seconds - self.waits.update())
        work.tokens += batch.num_tokens
        work.sum_sq_len += batch.sum_sq_len
        return out

    def _backward(self, output: Tensor, gradient: Tensor | None, work: Work) -> None:
        self.waits.update()
        start = self.clock()
        # The gradient of sum(output * gradient) is `gradient`, exactly. Given to `backward` directly, torch would first
        # import its symbolic shapes: 1.5 s without a sign of life and 30 MB.
        torch.autograd.backward(output if gradient is None else torch.sum(output * gradient))
        seconds = self.clock() - start
        work.backward_s += max(0.0, seconds - self.waits.update())

"""The vocabulary of programs: kinds of operations, an operation, a program. Generators are in `program`.

Sends do not block; receives block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from resihp_plan.edges import Place
from resihp_plan.plan import ParallelPlan


class OpKind(StrEnum):
    """What an operation does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Gradients of input and weights together."""
    BACKWARD_INPUT = "backward_input"
    """Split backward, first half: the gradient of the input, for which the previous stage waits (Qi et al. 2023: B)."""
    BACKWARD_WEIGHT = "backward_weight"
    """Split backward, second half: the gradients of the weights, for which nobody waits (Qi et al. 2023: W)."""
    SEND_ACT = "send_act"
    """Activations to the next stage."""
    RECV_ACT = "recv_act"
    SEND_GRAD = "send_grad"
    """Gradients of the activations to the previous stage."""
    RECV_GRAD = "recv_grad"

    @property
    def is_compute(self) -> bool:
        return self in (OpKind.FORWARD, OpKind.BACKWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)

    @property
    def is_send(self) -> bool:
        return self in (OpKind.SEND_ACT, OpKind.SEND_GRAD)

    @property
    def is_receive(self) -> bool:
        return self in (OpKind.RECV_ACT, OpKind.RECV_GRAD)


MATCHING_SEND: Mapping[OpKind, OpKind] = MappingProxyType(
    {OpKind.RECV_ACT: OpKind.SEND_ACT, OpKind.RECV_GRAD: OpKind.SEND_GRAD}
)
"""Which send a receive waits for."""


@dataclass(frozen=True)
class Op:
    """One operation on one micro-batch, executed by all members of a TP group in the same order."""

    kind: OpKind
    replica: int
    """Whose micro-batch it is."""
    stage: int
    micro_batch: int
    """Index inside `replica`, from 0."""
    executor: int
    """Replica whose devices run it: `replica`, unless the unit is migrated."""
    peer: Place | None = None
    """Transfers only: the executing place at the other end of the edge (`edges.routes` gives the ranks)."""

    @property
    def place(self) -> Place:
        """Where it runs."""
        return Place(self.executor, self.stage)

    def __str__(self) -> str:
        peer = "" if self.peer is None else f" <-> R{self.peer.replica}.S{self.peer.stage}"
        return f"{self.kind}(R{self.replica}.S{self.stage} m{self.micro_batch} on R{self.executor}{peer})"


@dataclass(frozen=True)
class Program:
    """The operations of one iteration. Ranks without work (standby, idle replicas) have an empty tuple."""

    ops: Mapping[int, tuple[Op, ...]]
    """Plan rank -> operations, for every rank of the plan's world."""


def unit_ops(plan: ParallelPlan, replica: int, stage: int, micro_batch: int, kind: OpKind) -> Iterator[Op]:
    """Receive, compute (`kind`) and send of a unit, wherever the plan has it and its neighbours executed."""
    unit = (replica, stage, micro_batch, plan.executor(replica, stage, micro_batch))
    if kind is OpKind.BACKWARD_WEIGHT:  # nobody waits for it
        yield Op(kind, *unit)
        return
    last = len(plan.replicas[replica].stages) - 1
    forward = kind is OpKind.FORWARD
    before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
    receive, send = (OpKind.RECV_ACT, OpKind.SEND_ACT) if forward else (OpKind.RECV_GRAD, OpKind.SEND_GRAD)
    if 0 <= before <= last:
        yield Op(receive, *unit, _place(plan, replica, before, micro_batch))
    yield Op(kind, *unit)
    if 0 <= after <= last:
        yield Op(send, *unit, _place(plan, replica, after, micro_batch))


def _place(plan: ParallelPlan, replica: int, stage: int, micro_batch: int) -> Place:
    return Place(plan.executor(replica, stage, micro_batch), stage)

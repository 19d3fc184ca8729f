"""Programs: for every rank the ordered operations of one iteration; a pure function of the plan (design: section 5).

One representation has three users: the trainer executes it, the detector predicts with it, the planner simulates it.
Sends do not block; receives block. Errors: `InvalidProgram` (a ValueError, see `check`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from resihp_plan.edges import Place
from resihp_plan.plan import InvalidPlan, ParallelPlan, Schedule


class OpKind(StrEnum):
    """What an operation does. Generators of other schedules may add kinds (split backward)."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND_ACT = "send_act"
    """Activations to the next stage."""
    RECV_ACT = "recv_act"
    SEND_GRAD = "send_grad"
    """Gradients of the activations to the previous stage."""
    RECV_GRAD = "recv_grad"

    @property
    def is_compute(self) -> bool:
        return self in (OpKind.FORWARD, OpKind.BACKWARD)

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


def program(plan: ParallelPlan) -> Program:
    """Generate the program of the plan's schedule. Raises `InvalidPlan` for a plan that no generator supports yet."""
    if plan.migrations:
        raise InvalidPlan(f"migrations: no schedule generates them yet, got {len(plan.migrations)}")
    assert plan.schedule is Schedule.ONE_F_ONE_B  # the only one so far
    ops: dict[int, tuple[Op, ...]] = dict.fromkeys(plan.world, ())
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            shared = tuple(one_f_one_b(a, s, len(replica.stages), replica.num_micro_batches))
            ops.update(dict.fromkeys(stage.ranks, shared))
    return Program(MappingProxyType(ops))


def one_f_one_b(replica: int, stage: int, num_stages: int, num_micro_batches: int) -> Iterator[Op]:
    """1F1B (PipeDream-flush): as many forwards as stages follow, then one forward and one backward in turn."""
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    for m in range(warm_up):
        yield from _forward(replica, stage, num_stages, m)
    for m in range(num_micro_batches - warm_up):
        yield from _forward(replica, stage, num_stages, m + warm_up)
        yield from _backward(replica, stage, num_stages, m)
    for m in range(num_micro_batches - warm_up, num_micro_batches):
        yield from _backward(replica, stage, num_stages, m)


def _forward(a: int, s: int, num_stages: int, m: int) -> Iterator[Op]:
    if s > 0:
        yield Op(OpKind.RECV_ACT, a, s, m, a, Place(a, s - 1))
    yield Op(OpKind.FORWARD, a, s, m, a)
    if s < num_stages - 1:
        yield Op(OpKind.SEND_ACT, a, s, m, a, Place(a, s + 1))


def _backward(a: int, s: int, num_stages: int, m: int) -> Iterator[Op]:
    if s < num_stages - 1:
        yield Op(OpKind.RECV_GRAD, a, s, m, a, Place(a, s + 1))
    yield Op(OpKind.BACKWARD, a, s, m, a)
    if s > 0:
        yield Op(OpKind.SEND_GRAD, a, s, m, a, Place(a, s - 1))

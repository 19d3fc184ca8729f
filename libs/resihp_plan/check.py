"""Proof of a program before it runs: complete, causal, matched on every edge, free of deadlock.

Errors: `InvalidProgram` (a ValueError) names the rule and the operation.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

from resihp_plan.edges import Place
from resihp_plan.plan import ParallelPlan, Schedule
from resihp_plan.program import MATCHING_SEND, Op, OpKind, Program

_COMPUTE: Mapping[Schedule, tuple[OpKind, ...]] = {
    s: (OpKind.FORWARD, OpKind.BACKWARD_INPUT, OpKind.BACKWARD_WEIGHT)
    if s.splits_backward
    else (OpKind.FORWARD, OpKind.BACKWARD)
    for s in Schedule
}
"""What is done with every unit; the second gives the gradient for the previous stage."""

Unit = tuple[int, int, int]
"""(replica, stage, micro-batch)."""


class InvalidProgram(ValueError):
    """A program that must not run; the text names the rule and the operation."""


def check_program(program: Program, plan: ParallelPlan) -> None:
    """Raise `InvalidProgram` unless the program is safe to run with non-blocking sends and blocking receives.

    1. ranks: exactly the plan's world has operations, standby ranks have none;
    2. same order: all members of a TP group run the same operations in the same order (they share collectives);
    3. placement: an operation runs at the place that it names;
    4. each unit once: every (replica, stage, micro-batch) has one forward and one backward, whole or as two halves,
       where the plan has it executed;
    5. causality: input received before a forward, forward before backward, result computed before it is sent;
    6. edges: each message is sent once and received once, and both ends see the messages of an edge in one order;
    7. no cycle: run to completion with first-in-first-out edges, nobody waits for ever.
    """
    if set(program.ops) != set(plan.world):
        raise InvalidProgram(f"ranks: program has {sorted(program.ops)}, plan has {list(plan.world)}")
    for rank in plan.standby:
        if program.ops[rank]:
            raise InvalidProgram(f"ranks: standby rank {rank} has {len(program.ops[rank])} operations")
    sequences = _sequences(program, plan)
    _check_units(sequences, plan)
    for ops in sequences.values():
        _check_causality(ops, plan)
    edges = {place: [None if op.kind.is_compute else _edge(op) for op in ops] for place, ops in sequences.items()}
    _check_edges(sequences, edges)
    _check_progress(sequences, edges)


def _sequences(program: Program, plan: ParallelPlan) -> dict[Place, tuple[Op, ...]]:
    found: dict[Place, tuple[Op, ...]] = {}
    for a, replica in enumerate(plan.replicas):
        for s, stage in enumerate(replica.stages):
            first = program.ops[stage.ranks[0]]
            for rank in stage.ranks[1:]:
                if program.ops[rank] != first:
                    raise InvalidProgram(f"same order: ranks {stage.ranks[0]} and {rank} of R{a}.S{s} differ")
            for op in first:
                if op.executor != a or op.stage != s:
                    raise InvalidProgram(f"placement: {op} is in the program of R{a}.S{s}")
            found[Place(a, s)] = first
    return found


def _check_units(sequences: Sequences, plan: ParallelPlan) -> None:
    expected: set[Unit] = {
        (a, s, m)
        for a, replica in enumerate(plan.replicas)
        for s in range(len(replica.stages))
        for m in range(replica.num_micro_batches)
    }
    for kind in _COMPUTE[plan.schedule]:
        ops = [op for sequence in sequences.values() for op in sequence if op.kind is kind]
        seen = Counter((op.replica, op.stage, op.micro_batch) for op in ops)
        for unit in sorted(expected | set(seen)):
            if seen[unit] != (unit in expected):
                raise InvalidProgram(
                    f"each unit once: {kind} of (replica, stage, micro-batch) {unit} occurs {seen[unit]} times"
                )
        for op in ops:
            if op.executor != plan.executor(op.replica, op.stage, op.micro_batch):
                raise InvalidProgram(f"placement: {op} does not follow the plan's migrations")
    for op in (op for sequence in sequences.values() for op in sequence):
        if op.kind.is_compute and op.kind not in _COMPUTE[plan.schedule]:
            raise InvalidProgram(f"each unit once: {op} has no place in schedule {plan.schedule}")


def _check_causality(ops: tuple[Op, ...], plan: ParallelPlan) -> None:
    done: set[tuple[OpKind, Unit]] = set()
    for op in ops:
        unit = (op.replica, op.stage, op.micro_batch)
        if not 0 <= op.replica < len(plan.replicas):
            raise InvalidProgram(f"causality: {op} belongs to no replica")
        is_last = op.stage == len(plan.replicas[op.replica].stages) - 1
        for before in _needs(op.kind, op.stage == 0, is_last, plan.schedule):
            if (before, unit) not in done:
                raise InvalidProgram(f"causality: {op} comes before its {before}")
        done.add((op.kind, unit))


def _needs(kind: OpKind, is_first: bool, is_last: bool, schedule: Schedule) -> Iterable[OpKind]:
    """Operations on the same unit that must precede `kind` on the same rank."""
    match kind:
        case OpKind.FORWARD:
            return () if is_first else (OpKind.RECV_ACT,)
        case OpKind.BACKWARD | OpKind.BACKWARD_INPUT:
            return (OpKind.FORWARD,) if is_last else (OpKind.FORWARD, OpKind.RECV_GRAD)
        case OpKind.BACKWARD_WEIGHT:
            return (OpKind.BACKWARD_INPUT,)
        case OpKind.SEND_ACT:
            return (OpKind.FORWARD,)
        case OpKind.SEND_GRAD:
            return (_COMPUTE[schedule][1],)
        case OpKind.RECV_ACT | OpKind.RECV_GRAD:
            return ()


Edge = tuple[OpKind, Place, Place]
"""(kind of send, sending place, receiving place)."""
Sequences = Mapping[Place, tuple[Op, ...]]
Edges = Mapping[Place, Sequence[Edge | None]]
"""Over which edge each operation of `Sequences` sends or receives; None for a computation."""


def _edge(op: Op) -> Edge:
    if op.peer is None:
        raise InvalidProgram(f"edges: {op} names no peer")
    if op.kind.is_send:
        return op.kind, op.place, op.peer
    return MATCHING_SEND[op.kind], op.peer, op.place


def _check_edges(sequences: Sequences, edges: Edges) -> None:
    sent: dict[Edge, list[tuple[int, int]]] = defaultdict(list)
    received: dict[Edge, list[tuple[int, int]]] = defaultdict(list)
    for place, ops in sequences.items():
        for op, edge in zip(ops, edges[place], strict=True):
            if edge is None:
                continue
            step = 1 if edge[0] is OpKind.SEND_ACT else -1
            if edge[2].stage != edge[1].stage + step or edge[2] not in sequences:
                raise InvalidProgram(f"edges: {op} does not go to a neighbouring stage")
            (sent if op.kind is edge[0] else received)[edge].append((op.replica, op.micro_batch))
    for edge in sorted({*sent, *received}):
        name = f"{edge[0]} R{edge[1].replica}.S{edge[1].stage} -> R{edge[2].replica}.S{edge[2].stage}"
        if sent[edge] != received[edge]:
            raise InvalidProgram(f"edges: {name} sends {sent[edge]} but its receiver expects {received[edge]}")
        if len(set(sent[edge])) != len(sent[edge]):
            raise InvalidProgram(f"edges: {name} carries a message twice: {sent[edge]}")


def _check_progress(sequences: Sequences, edges: Edges) -> None:
    """Run the program abstractly. Sends never wait and edges are first in, first out, so the outcome is unique."""
    position = dict.fromkeys(sequences, 0)
    in_flight: Counter[Edge] = Counter()
    waiting: dict[Edge, Place] = {}
    ready = deque(sequences)
    while ready:
        place = ready.popleft()
        ops, via = sequences[place], edges[place]
        for i in range(position[place], len(ops)):
            position[place] = i
            edge = via[i]
            if edge is None:
                continue
            if ops[i].kind is edge[0]:
                in_flight[edge] += 1
                if edge in waiting:
                    ready.append(waiting.pop(edge))
            elif in_flight[edge]:
                in_flight[edge] -= 1
            else:
                waiting[edge] = place
                break
        else:
            position[place] = len(ops)
    stuck = [str(sequences[p][i]) for p, i in position.items() if i < len(sequences[p])]
    if stuck:
        raise InvalidProgram(f"no cycle: these operations wait for each other: {'; '.join(stuck)}")

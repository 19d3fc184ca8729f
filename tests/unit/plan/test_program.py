"""Programs: 1F1B order, and a checker that accepts every generated program and refuses mutated ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resihp_plan import (
    CostModel,
    InvalidPlan,
    InvalidProgram,
    Migration,
    ModelSpec,
    Op,
    OpKind,
    ParallelPlan,
    Place,
    Program,
    ReplicaPlan,
    Workload,
    check_program,
    program,
    simulate,
)
from support.plans import demo_plan, models, plans, stage

SHORT = {
    OpKind.FORWARD: "F",
    OpKind.BACKWARD: "B",
    OpKind.SEND_ACT: "sa",
    OpKind.RECV_ACT: "ra",
    OpKind.SEND_GRAD: "sg",
    OpKind.RECV_GRAD: "rg",
}


def _pipeline(num_stages: int, count: int) -> ParallelPlan:
    return ParallelPlan(1, (ReplicaPlan(tuple(stage(s, s + 1, s) for s in range(num_stages)), count),))


def _text(ops: tuple[Op, ...]) -> str:
    return " ".join(f"{SHORT[op.kind]}{op.micro_batch}" for op in ops)


def test_1f1b_of_two_stages() -> None:
    ops = program(_pipeline(2, 3)).ops
    assert _text(ops[0]) == "F0 sa0 F1 sa1 rg0 B0 F2 sa2 rg1 B1 rg2 B2"
    assert _text(ops[1]) == "ra0 F0 B0 sg0 ra1 F1 B1 sg1 ra2 F2 B2 sg2"


@given(st.integers(1, 6), st.integers(0, 9))
def test_1f1b_keeps_as_many_in_flight_as_stages_follow(num_stages: int, count: int) -> None:
    plan = _pipeline(num_stages, count)
    made = program(plan)
    check_program(made, plan)
    for s in range(num_stages):
        depth, deepest = 0, 0
        for op in made.ops[s]:
            depth += (op.kind is OpKind.FORWARD) - (op.kind is OpKind.BACKWARD)
            deepest = max(deepest, depth)
        assert depth == 0
        assert deepest == min(num_stages - s, count)


@settings(max_examples=40)
@given(st.data())
def test_every_generated_program_passes(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(models())))
    made = program(plan)
    check_program(made, plan)
    for rank in plan.standby:
        assert made.ops[rank] == ()
    for a, replica in enumerate(plan.replicas):
        for s, st_ in enumerate(replica.stages):
            for rank in st_.ranks:
                assert made.ops[rank] == made.ops[st_.ranks[0]]
                assert sum(op.kind is OpKind.FORWARD for op in made.ops[rank]) == replica.num_micro_batches
                assert all(op.place == Place(a, s) for op in made.ops[rank])


def _change(made: Program, plan: ParallelPlan, place: Place, ops: list[Op]) -> Program:
    """All members of the place's group get `ops`."""
    members = plan.replicas[place.replica].stages[place.stage].ranks
    return Program({**made.ops, **dict.fromkeys(members, tuple(ops))})


@settings(max_examples=100)
@given(st.data())
def test_dropped_doubled_or_foreign_operations_are_refused(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(models())))
    made = program(plan)
    busy = [p for p in _places(plan) if plan.replicas[p.replica].num_micro_batches]
    place = data.draw(st.sampled_from(busy))
    ops = list(made.ops[plan.replicas[place.replica].stages[place.stage].ranks[0]])
    i = data.draw(st.integers(0, len(ops) - 1))
    match data.draw(st.sampled_from(["drop", "double", "micro_batch", "replica", "stage", "executor", "peer"])):
        case "drop":
            del ops[i]
        case "double":
            ops.insert(i, ops[i])
        case "micro_batch":
            ops[i] = dataclasses.replace(ops[i], micro_batch=ops[i].micro_batch + 1)
        case "replica":
            ops[i] = dataclasses.replace(ops[i], replica=ops[i].replica + 1)
        case "stage":
            ops[i] = dataclasses.replace(ops[i], stage=ops[i].stage + 1)
        case "executor":
            ops[i] = dataclasses.replace(ops[i], executor=ops[i].executor + 1)
        case "peer":
            assume(not ops[i].kind.is_compute)
            wrong = data.draw(st.sampled_from([None, place, Place(place.replica, place.stage + 2)]))
            ops[i] = dataclasses.replace(ops[i], peer=wrong)
    with pytest.raises(InvalidProgram):
        check_program(_change(made, plan, place, ops), plan)


def _places(plan: ParallelPlan) -> list[Place]:
    return [Place(a, s) for a, r in enumerate(plan.replicas) for s in range(len(r.stages))]


@settings(max_examples=100)
@given(st.integers(2, 4), st.integers(2, 5), st.data())
def test_swapped_messages_are_refused(num_stages: int, count: int, data: st.DataObject) -> None:
    """Two messages of one edge change places at one end only."""
    plan = _pipeline(num_stages, count)
    made = program(plan)
    s = data.draw(st.integers(0, num_stages - 1))
    ops = list(made.ops[s])
    kind = data.draw(st.sampled_from([op.kind for op in ops if not op.kind.is_compute]))
    i, j = sorted(data.draw(st.permutations([n for n, op in enumerate(ops) if op.kind is kind]))[:2])
    ops[i], ops[j] = ops[j], ops[i]
    with pytest.raises(InvalidProgram, match=r"causality|edges"):
        check_program(_change(made, plan, Place(0, s), ops), plan)


def test_members_of_a_group_must_agree() -> None:
    plan = demo_plan()
    made = program(plan)
    ops: Mapping[int, tuple[Op, ...]] = {**made.ops, 3: made.ops[3][::-1]}
    with pytest.raises(InvalidProgram, match=r"same order: ranks 2 and 3 of R0\.S1 differ"):
        check_program(Program(ops), plan)


def test_a_circle_of_waits_is_found() -> None:
    """Each stage waits for what the other one sends later: complete, causal and matched, and yet it never ends."""
    plan = _pipeline(2, 2)
    made = program(plan)

    def op(kind: OpKind, s: int, m: int) -> Op:
        return Op(kind, 0, s, m, 0, None if kind.is_compute else Place(0, 1 - s))

    first = [
        op(k, 0, m)
        for k, m in [
            (OpKind.FORWARD, 0),
            (OpKind.SEND_ACT, 0),
            (OpKind.RECV_GRAD, 0),
            (OpKind.BACKWARD, 0),
            (OpKind.FORWARD, 1),
            (OpKind.SEND_ACT, 1),
            (OpKind.RECV_GRAD, 1),
            (OpKind.BACKWARD, 1),
        ]
    ]
    second = [
        op(k, 1, m)
        for k, m in [
            (OpKind.RECV_ACT, 0),
            (OpKind.FORWARD, 0),
            (OpKind.RECV_ACT, 1),
            (OpKind.FORWARD, 1),
            (OpKind.BACKWARD, 0),
            (OpKind.SEND_GRAD, 0),
            (OpKind.BACKWARD, 1),
            (OpKind.SEND_GRAD, 1),
        ]
    ]
    changed = _change(_change(made, plan, Place(0, 0), first), plan, Place(0, 1), second)
    with pytest.raises(InvalidProgram, match=r"no cycle: .*recv_grad.*; recv_act"):
        check_program(changed, plan)


def test_the_world_must_match() -> None:
    plan = demo_plan()
    made = program(plan)
    with pytest.raises(InvalidProgram, match="ranks: program has"):
        check_program(Program({r: o for r, o in made.ops.items() if r != 4}), plan)
    standby = dataclasses.replace(plan, standby=(8,))
    with pytest.raises(InvalidProgram, match="standby rank 8 has"):
        check_program(Program({**made.ops, 8: made.ops[0]}), standby)


def test_idle_replicas_have_no_operations() -> None:
    plan = dataclasses.replace(
        demo_plan(),
        replicas=tuple(dataclasses.replace(r, num_micro_batches=8 * a) for a, r in enumerate(demo_plan().replicas)),
    )
    made = program(plan)
    check_program(made, plan)
    assert made.ops[0] == ()
    assert len(made.ops[4]) == 8 * 4


def test_migrations_are_not_generated_yet() -> None:
    with pytest.raises(InvalidPlan, match="migrations"):
        program(dataclasses.replace(demo_plan(), migrations=(Migration(0, 0, 0, 1),)))


@settings(max_examples=100)
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_what_passes_can_be_run(num_stages: int, count: int, data: st.DataObject) -> None:
    """Stages execute units in arbitrary orders: the checker refuses exactly those that cannot run to the end."""
    plan = _pipeline(num_stages, count)
    made = program(plan)
    sequences = {}
    for s in range(num_stages):
        sequences[s] = tuple(op for unit in data.draw(st.permutations(_units(made.ops[s]))) for op in unit)
    changed = Program({**made.ops, **sequences})
    try:
        check_program(changed, plan)
    except InvalidProgram as error:
        if str(error).startswith("no cycle"):
            with pytest.raises(ValueError, match="waits for ever"):
                _run(changed, plan)
    else:
        _run(changed, plan)


def _units(ops: tuple[Op, ...]) -> list[list[Op]]:
    """Operations of one micro-batch and direction: receive, compute, send."""
    backward = {OpKind.RECV_GRAD, OpKind.BACKWARD, OpKind.SEND_GRAD}
    units: dict[tuple[int, bool], list[Op]] = {}
    for op in ops:
        units.setdefault((op.micro_batch, op.kind in backward), []).append(op)
    return list(units.values())


def _run(made: Program, plan: ParallelPlan) -> None:
    cost = CostModel.for_model(ModelSpec(num_layers=len(plan.replicas[0].stages)))
    simulate(plan, made, Workload.typical(plan.num_micro_batches, 8).work(plan), cost)

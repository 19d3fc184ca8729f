"""Programs: 1F1B order, and a checker that accepts every generated program and refuses mutated ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from resihp_plan import (
    CostModel,
    InvalidProgram,
    MicroBatchWork,
    ModelSpec,
    Op,
    OpKind,
    ParallelPlan,
    Place,
    Program,
    ReplicaPlan,
    Schedule,
    Workload,
    check_program,
    program,
    simulate,
)
from resihp_plan.list_schedule import list_schedule
from support.plans import DEMO_MODEL, demo_plan, migrating_plans, models, plans, stage

SHORT = {
    OpKind.FORWARD: "F",
    OpKind.BACKWARD: "B",
    OpKind.BACKWARD_INPUT: "b",
    OpKind.BACKWARD_WEIGHT: "w",
    OpKind.SEND_ACT: "sa",
    OpKind.RECV_ACT: "ra",
    OpKind.SEND_GRAD: "sg",
    OpKind.RECV_GRAD: "rg",
}


def _pipeline(num_stages: int, count: int, schedule: Schedule = Schedule.ONE_F_ONE_B) -> ParallelPlan:
    stages = tuple(stage(s, s + 1, s) for s in range(num_stages))
    return ParallelPlan(1, (ReplicaPlan(stages, count),), schedule=schedule)


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


def test_zb_h1_of_two_stages() -> None:
    ops = program(_pipeline(2, 3, Schedule.ZB_H1)).ops
    assert _text(ops[0]) == "F0 sa0 F1 sa1 rg0 b0 w0 F2 sa2 rg1 b1 w1 rg2 b2 w2"
    assert _text(ops[1]) == "ra0 F0 b0 sg0 ra1 F1 b1 sg1 w0 ra2 F2 b2 sg2 w1 w2"


@given(st.integers(1, 6), st.integers(0, 9))
def test_zb_h1_holds_no_more_than_the_first_stage_of_1f1b(num_stages: int, count: int) -> None:
    plan = _pipeline(num_stages, count, Schedule.ZB_H1)
    made = program(plan)
    check_program(made, plan)
    for s in range(num_stages):
        held = [(op.kind is OpKind.FORWARD) - (op.kind is OpKind.BACKWARD_WEIGHT) for op in made.ops[s]]
        assert max(itertools.accumulate(held), default=0) == min(num_stages, count)


@given(st.integers(1, 6), st.integers(0, 8))
def test_zb_h1_has_the_bubble_of_its_paper(num_stages: int, extra: int) -> None:
    """(P - 1)(F + B - W), a third of that of 1F1B when F = B = W; for at least 2P - 1 micro-batches, free links."""
    count = 2 * num_stages - 1 + extra
    cost = CostModel(ModelSpec(num_layers=num_stages), attention_s=0.5, mlp_s=0.5, square_s=0.0, head_s=0.0)
    work = ((MicroBatchWork(1, 1),) * count,)
    for schedule, bubble in ((Schedule.ZB_H1, 1), (Schedule.ONE_F_ONE_B, 3)):
        plan = _pipeline(num_stages, count, schedule)
        assert simulate(plan, program(plan), work, cost).pipeline_s == 3 * count + bubble * (num_stages - 1)


@pytest.mark.parametrize("schedule", [s for s in Schedule if not s.splits_backward])
@pytest.mark.parametrize("num_stages", [1, 2, 4, 5])
def test_what_a_stage_holds_is_known_exactly(schedule: Schedule, num_stages: int) -> None:
    """Without exchanged units the slack is no more than the stages that follow; memory limits rely on it."""
    made = program(_pipeline(num_stages, 12, schedule))
    for s in range(num_stages):
        flying = itertools.accumulate(
            (op.kind is OpKind.FORWARD) - (op.kind is OpKind.BACKWARD) for op in made.ops[s] if op.kind.is_compute
        )
        assert max(flying) == schedule.in_flight(num_stages, s)


@settings(max_examples=100)
@given(migrating_plans())
def test_programs_with_migrated_units_pass_and_bound_what_is_in_flight(plan: ParallelPlan) -> None:
    made = program(plan)
    check_program(made, plan)
    for a, replica in enumerate(plan.replicas):
        for s, st_ in enumerate(replica.stages):
            ops = made.ops[st_.ranks[0]]
            assert sum(op.kind is OpKind.FORWARD for op in ops) == plan.num_units(a, s)
            flying = [(op.kind is OpKind.FORWARD) - (op.kind in (OpKind.BACKWARD, OpKind.BACKWARD_INPUT)) for op in ops]
            assert max(itertools.accumulate(flying), default=0) <= plan.schedule.most_open(len(replica.stages), s)
            held = [(op.kind is OpKind.FORWARD) - (op.kind is OpKind.BACKWARD_WEIGHT) for op in ops]
            if plan.schedule.splits_backward:
                assert max(itertools.accumulate(held), default=0) <= len(replica.stages)


@settings(max_examples=50)
@given(migrating_plans(), st.data())
def test_a_migrated_unit_at_the_wrong_place_is_refused(plan: ParallelPlan, data: st.DataObject) -> None:
    """The program of a plan is refused under a plan that gives one unit more or less away."""
    assume(plan.migrations)
    left_out = data.draw(st.sampled_from(plan.migrations))
    fewer = dataclasses.replace(plan, migrations=tuple(m for m in plan.migrations if m != left_out))
    for made, other in ((program(plan), fewer), (program(fewer), plan)):
        with pytest.raises(InvalidProgram):
            check_program(made, other)


def test_a_program_of_another_schedule_is_refused() -> None:
    plan = demo_plan()
    late = dataclasses.replace(plan, schedule=Schedule.ZB_H1)
    for made, other in ((program(plan), late), (program(late), plan)):
        with pytest.raises(InvalidProgram, match="each unit once"):
            check_program(made, other)


def test_the_list_schedule_is_as_good_as_1f1b_where_nothing_is_exchanged() -> None:
    for schedule in Schedule:
        plan = dataclasses.replace(demo_plan(), schedule=schedule)
        cost = CostModel(DEMO_MODEL, attention_s=0.5, mlp_s=0.5, square_s=0.0, head_s=0.0)
        work = Workload.typical(8, 16).work(plan)
        listed = list_schedule(plan, {0, 1})
        ops = {
            r: listed[a, s] for a, rep in enumerate(plan.replicas) for s, x in enumerate(rep.stages) for r in x.ranks
        }
        check_program(Program(ops), plan)
        best = simulate(plan, program(plan), work, cost).pipeline_s
        assert simulate(plan, Program(ops), work, cost).pipeline_s <= best


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

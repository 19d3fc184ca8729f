"""A copy must not die with all holders of the same slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import GroupKind, ModelSpec, ParallelPlan, ReplicaPlan, groups, guardians, layout, needed, transfers
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage

NODES = {rank: f"n{rank // 4}" for rank in range(8)}


def missing_without(
    plan: ParallelPlan, model: ModelSpec, guards: dict[int, int], dead: Collection[int]
) -> tuple[tuple[str, int, int], ...]:
    """What of a complete snapshot nobody holds any more."""
    held = layout(plan, model)
    copies = {r: {r, guards.get(r, r)} - set(dead) for r in plan.active}
    return transfers(held, held, alive=(), copies=copies).missing


@settings(max_examples=40)
@given(st.data())
def test_every_rank_with_a_stage_has_another_rank_as_guardian(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(models())))
    guards = guardians(plan)
    assert set(guards) == (set(plan.active) if len(plan.world) > 1 else set())
    assert all(ward != guard and guard in plan.world for ward, guard in guards.items())


@settings(max_examples=40)
@given(st.data())
def test_the_loss_of_any_node_leaves_a_complete_snapshot(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    nodes = {rank: data.draw(st.sampled_from("abc")) for rank in plan.world}
    guards = dict(guardians(plan, nodes))
    for lost in set(nodes.values()):
        dead = {r for r in plan.world if nodes[r] == lost}
        if dead != set(plan.world):
            assert not missing_without(plan, model, guards, dead)


@settings(max_examples=40)
@given(st.data())
def test_the_loss_of_all_holders_of_a_layer_leaves_a_complete_snapshot(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    guards = dict(guardians(plan))
    layers = {
        rank: range(st_.layer_start, st_.layer_stop)
        for rep in plan.replicas
        for st_ in rep.stages
        for rank in st_.ranks
    }
    layers |= {rank: range(0) for rank in plan.standby}
    for layer in range(model.num_layers):
        dead = {rank for rank, held in layers.items() if layer in held}
        if all(any(not set(layers[r]) & set(other) for other in layers.values()) for r in dead):
            assert not missing_without(plan, model, guards, dead)


def test_a_regular_plan_spreads_its_copies() -> None:
    guards = dict(guardians(demo_plan(), NODES))
    assert set(Counter(guards.values()).values()) == {1}
    for dead in ({2, 3, 6, 7}, {0, 1, 4, 5}, {0, 1, 2, 3}, {4, 5, 6, 7}):
        assert not missing_without(demo_plan(), DEMO_MODEL, guards, dead)


def test_without_another_stage_the_other_parts_of_the_layers_are_safe() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 8, 0, 1),), 4), ReplicaPlan((stage(0, 8, 2, 3),), 4)))
    guards = dict(guardians(plan))
    assert not missing_without(plan, DEMO_MODEL, guards, {0, 2})  # both holders of the first half


def test_a_standby_rank_is_a_good_guardian() -> None:
    plan = ParallelPlan(1, (ReplicaPlan((stage(0, 8, 0, 1),), 8),), standby=(2,))
    assert dict(guardians(plan)) == {0: 2, 1: 2}


def test_one_group_for_each_pair() -> None:
    guards = guardians(demo_plan(), NODES)
    copies = [g for g in groups(demo_plan(), DEMO_MODEL, guards) if g.kind is GroupKind.COPY]
    assert {g.ranks for g in copies} == {tuple(sorted(pair)) for pair in guards.items()}
    assert not [g for g in groups(demo_plan(), DEMO_MODEL) if g.kind is GroupKind.COPY]


@settings(max_examples=40)
@given(st.data())
def test_copies_that_are_not_needed_are_missed_after_no_loss(data: st.DataObject) -> None:
    model = data.draw(models())
    plan = data.draw(plans(model))
    guards = dict(guardians(plan))
    dead = data.draw(st.sets(st.sampled_from(plan.world)))
    some = dict(needed(guards, layout(plan, model)))
    assert some.items() <= guards.items()
    assert missing_without(plan, model, some, dead) == missing_without(plan, model, guards, dead)


def test_replicas_of_one_device_are_each_others_copies() -> None:
    plan = ParallelPlan(1, tuple(ReplicaPlan((stage(0, 4, (rank,)),), 1) for rank in range(3)))
    assert len(guardians(plan)) == 3
    assert not needed(guardians(plan), layout(plan, DEMO_MODEL))
    staged = demo_plan()
    assert dict(needed(guardians(staged), layout(staged, DEMO_MODEL))) == dict(guardians(staged))

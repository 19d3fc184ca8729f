"""Owners of parts of the model, against the lists of slices; and what stands on them: volumes, lost state, memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import MemoryModel, ModelSpec, gradient_buckets, layout, transfers
from resihp_plan.model import EMBEDDING, HEAD
from resihp_plan.owners import lost, owned, volumes
from resihp_plan.planner.moving import Mover
from support.plans import DEMO_MODEL, demo_plan, migrating_plans, models, plans


@given(st.data(), models())
@settings(max_examples=30)
def test_volumes_are_those_of_the_buckets(data: st.DataObject, model: ModelSpec) -> None:
    plan = data.draw(plans(model))
    expected = [(b.owners, b.num_elements) for b in gradient_buckets(plan, model)]
    assert list(volumes(plan, model).items()) == expected, "the order is the buckets' too"


@given(st.data(), models())
@settings(max_examples=30)
def test_what_is_lost_is_what_transfers_miss(data: st.DataObject, model: ModelSpec) -> None:
    """With state that nobody holds: the same layers are named, and the rest moves as `transfers` says."""
    old, new = data.draw(plans(model)), data.draw(plans(model))
    alive = {*new.active, *data.draw(st.lists(st.sampled_from(old.world), unique=True))}
    held, wanted = layout(old, model), layout(new, model)
    missing = transfers(held, held, alive=alive).missing
    gone = lost(old, model, alive)
    named = {(m.part + i if m.part >= 0 else m.part) for m in gone for i in range(m.num_layers)}
    assert named == {held.tensors[name].layer for name, _, _ in missing}
    moved = transfers(held, wanted, alive=alive).num_elements(model)
    assert Mover(old, model, gone).to(new).total == moved


def test_everything_is_owned_once() -> None:
    parts = {piece.part for piece in owned(demo_plan(), DEMO_MODEL)}
    assert parts == {EMBEDDING, 0, 4, HEAD}, "layers that are cut alike are one part"
    total = sum(piece.elements for piece in owned(demo_plan(), DEMO_MODEL))
    held = layout(demo_plan(), DEMO_MODEL)
    norms = DEMO_MODEL.hidden  # whole on both members of a group: per layer two, and the final one
    assert total == sum(held.num_elements(r) for r in range(4)) - norms * (2 * DEMO_MODEL.num_layers + 1)


@given(st.data(), models())
@settings(max_examples=30)
def test_memory_of_alike_stages_is_that_of_every_rank(data: st.DataObject, model: ModelSpec) -> None:
    plan = data.draw(st.one_of(plans(model), migrating_plans()))
    model = replace(model, num_layers=plan.replicas[0].stages[-1].layer_stop)
    held = layout(plan, model)
    need = {rank: MemoryModel(model, 64, {}).rank_bytes(held, rank) for rank in plan.active}
    limits = {rank: n - data.draw(st.integers(0, 1)) for rank, n in need.items() if data.draw(st.booleans())}
    memory = MemoryModel(model, 64, limits)
    expected = tuple((rank, need[rank], limit) for rank, limit in sorted(limits.items()) if need[rank] > limit)
    assert memory.excess(plan) == expected
    assert memory.excess(plan) == expected, "again, from memory"

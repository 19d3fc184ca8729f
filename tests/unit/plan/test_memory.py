"""The memory model as the planner uses it: what the search takes for room fits, and little room is wasted.

Whether its bytes are right is measured in tests/unit/trainer and tests/integration/trainer.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import (
    Cluster,
    CostModel,
    Device,
    MemoryModel,
    ModelSpec,
    ParallelPlan,
    ReplicaPlan,
    Schedule,
    Workload,
    layout,
)
from resihp_plan.activations import held_units
from resihp_plan.planner import Assumptions, Infeasible, plan_change
from resihp_plan.planner.tpgroups import GroupMaker
from support.plans import DEMO_MODEL, demo_plan, models, stage


@settings(max_examples=60)
@given(st.data())
def test_what_the_search_takes_for_room_fits(data: st.DataObject) -> None:
    """A pipeline of one group per stage with as many layers as `max_layers` allows keeps its limits; with one more
    layer on a stage that is neither first nor last, the exact model agrees within one layer."""
    drawn = dataclasses.replace(data.draw(models()), recompute=data.draw(st.booleans()))
    degree, num_stages = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    schedule = data.draw(st.sampled_from(Schedule))
    tokens = data.draw(st.integers(1, 64))
    weights = data.draw(st.lists(st.integers(1, 4), min_size=degree, max_size=degree))
    ranks = range(degree * num_stages)
    big = MemoryModel(dataclasses.replace(drawn, num_layers=1), tokens, {})
    one = ParallelPlan(1, (ReplicaPlan((stage(0, 1, *range(degree), weights=tuple(weights)),), 9),))
    limit = int(big.rank_bytes(layout(one, big.model), 0) * data.draw(st.floats(1.5, 30)))
    memory = dataclasses.replace(big, limit_of=dict.fromkeys(ranks, limit))
    maker = GroupMaker(CostModel.for_model(drawn), Workload.typical(4, 64).micro_batch, None, memory)
    groups = [maker.given(ranks[s * degree : (s + 1) * degree], weights) for s in range(num_stages)]
    layers = [
        0 if g is None else g.max_layers(*held_units(schedule, num_stages, s, drawn), (s == 0) + (s == num_stages - 1))
        for s, g in enumerate(groups)
    ]
    if min(layers) < 1 or sum(layers) > 500:
        return
    model = dataclasses.replace(drawn, num_layers=sum(layers))
    bounds = [sum(layers[:s]) for s in range(num_stages + 1)]
    stages = tuple(
        stage(a, b, *ranks[s * degree : (s + 1) * degree], weights=tuple(weights))
        for s, (a, b) in enumerate(itertools.pairwise(bounds))
    )
    plan = ParallelPlan(1, (ReplicaPlan(stages, 9),), schedule=schedule)
    assert not dataclasses.replace(memory, model=model).excess(plan)


def test_each_part_of_the_need() -> None:
    """State, kept activations, working set; recomputation, autocast and shorter micro-batches need less."""
    plan = demo_plan()
    held = layout(plan, DEMO_MODEL)
    memory = MemoryModel(DEMO_MODEL, 128, {})
    state = 4 * 4 * held.num_elements(0)
    assert memory.rank_bytes(held, 0) == state + memory.activation_bytes(plan, 0, 0, 0)
    # First stage, 4 layers, 2 micro-batches in flight: 6 + 3/2 + 2/4 hidden and 4/2 MLP widths, and the stage's input.
    kept = 2 * 128 * (4 * (8 * 128 + 2 * 352) + 128)
    assert memory.activation_bytes(plan, 0, 0, 0) == 4 * (kept + 128 * (352 // 2 + 3 * 128))
    short = MemoryModel(DEMO_MODEL, 1, {})
    assert short.rank_bytes(held, 0) == 5 * 4 * held.num_elements(0), "the packed gradients are the peak"
    for changes in ({"recompute": True}, {"autocast": True}):
        model = dataclasses.replace(DEMO_MODEL, **changes)
        assert MemoryModel(model, 128, {}).activation_bytes(plan, 0, 0, 0) < memory.activation_bytes(plan, 0, 0, 0)
    assert memory.change_bytes(held, held, 0) == 2 * 3 * 4 * held.num_elements(0)


def test_a_tied_embedding_is_counted_on_both_ends() -> None:
    tied = dataclasses.replace(ModelSpec(), tied_embeddings=True)
    held = layout(demo_plan(), tied)
    assert held.num_elements(2) == layout(demo_plan(), ModelSpec()).num_elements(2)


def test_planning_keeps_the_limits_of_the_devices() -> None:
    """Half of the ranks die. With room for it one replica with all layers per stage is left; with less, both stages
    must be kept; with too little, it is said."""
    model = ModelSpec(num_layers=8)
    cost, workload = CostModel.for_model(model), Workload.typical(8, 128)
    plan = demo_plan()
    health = dict.fromkeys((4, 5, 6, 7), 0.0)

    def after(limit: int | None) -> ParallelPlan:
        cluster = Cluster(tuple(Device(r, "n0", limit) for r in range(8)))
        found = plan_change(
            plan, model, cluster, health, workload, clock=time.monotonic, assuming=Assumptions(cost)
        ).plan
        if limit is not None:
            memory = MemoryModel(model, 128, cluster.memory_of)
            assert not memory.excess(found)
        return found

    need = max(MemoryModel(model, 128, {}).rank_bytes(layout(plan, model), r) for r in range(8))
    assert after(None).active
    assert len(after(int(need * 1.2)).active) > 1
    with pytest.raises(Infeasible, match="memory of 4 devices"):
        after(need // 4)

"""The vectorised evaluation against `simulate`, and against the closed form of 1F1B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_plan import CostModel, ParallelPlan, ReplicaPlan, Schedule, Workload, program, simulate
from resihp_plan.planner.shape import shape_of
from resihp_plan.planner.space import Space
from resihp_plan.planner.timeline import timeline
from resihp_plan.planner.tpgroups import GroupMaker
from support.plans import DEMO_MODEL, plans


@pytest.mark.parametrize("schedule", list(Schedule))
@given(plan=plans(DEMO_MODEL), speeds=st.lists(st.sampled_from([1.0, 0.5, 0.3]), min_size=40, max_size=40))
@settings(max_examples=12)
def test_pipelines_are_those_of_simulate(schedule: Schedule, plan: ParallelPlan, speeds: list[float]) -> None:
    plan = ParallelPlan(plan.epoch, plan.replicas, standby=plan.standby, schedule=schedule)
    health = dict(enumerate(speeds))
    cost = CostModel.for_model(DEMO_MODEL, bytes_per_s=1e8, transfer_latency_s=1e-3, tp_bytes_per_s=5e8)
    cost = replace(cost, link_of={r: p for r, p in enumerate(reversed(speeds)) if p < 1})
    workload = Workload.typical(plan.num_micro_batches, 64)
    expected = simulate(plan, program(plan), workload.work(plan), cost, health=health)
    maker = GroupMaker(cost, workload.micro_batch, health, None)
    shape = shape_of(plan, maker)
    assert shape is not None
    space = Space(maker, workload, schedule)
    times = space.replica_s(shape, list(zip(shape.pipelines, shape.layers, shape.counts, strict=True)))
    assert max(times) == pytest.approx(expected.pipeline_s, rel=1e-9)
    for a, replica in enumerate(plan.replicas):
        alone = ParallelPlan(0, (ReplicaPlan(replica.stages, max(1, replica.num_micro_batches)),), schedule=schedule)
        one = simulate(alone, program(alone), workload.work(alone), cost, health=health)
        if replica.num_micro_batches:
            assert times[a] == pytest.approx(one.pipeline_s, rel=1e-9)
        else:
            assert times[a] == 0.0


@pytest.mark.parametrize(("num_stages", "count"), [(1, 1), (1, 5), (2, 3), (4, 4), (4, 16), (8, 9), (5, 2)])
def test_equal_stages_follow_the_closed_form(num_stages: int, count: int) -> None:
    line = timeline(Schedule.ONE_F_ONE_B, num_stages, count)
    seconds = np.array([[[1.0] * num_stages, [2.0] * num_stages], [[2.0] * num_stages, [4.5] * num_stages]])
    found = line.stops_s(seconds, np.zeros((2, 2, num_stages - 1))).max(axis=1)
    assert found == pytest.approx([(count + num_stages - 1) * 3.0, (count + num_stages - 1) * 6.5])

"""Work in whole layers: shares of any plan add up, and seconds per unit of work do not depend on the layout."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_detect import peer_groups, shares
from resihp_plan import CostModel, MicroBatchWork, OpKind
from support.plans import DEMO_MODEL, demo_plan, plans


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_members_of_a_stage_do_its_layers_together(data: st.DataObject) -> None:
    plan = data.draw(plans(DEMO_MODEL))
    found = shares(plan, DEMO_MODEL)
    assert set(found) == set(plan.active)
    cost = CostModel.for_model(DEMO_MODEL)
    head = cost.head_s / (cost.attention_s + cost.mlp_s)
    for replica in plan.replicas:
        for s, stage in enumerate(replica.stages):
            layers = stage.layer_stop - stage.layer_start
            extra = head if s == len(replica.stages) - 1 else 0.0
            assert sum(found[r].per_token for r in stage.ranks) == pytest.approx(layers + extra)
            assert sum(found[r].per_square for r in stage.ranks) == pytest.approx(layers)
            assert {found[r].group for r in stage.ranks} == {f"s{s}"}


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_seconds_per_unit_of_work_do_not_depend_on_the_layout(data: st.DataObject) -> None:
    plan = data.draw(plans(DEMO_MODEL))
    found, cost = shares(plan, DEMO_MODEL), CostModel.for_model(DEMO_MODEL)
    batch = MicroBatchWork.of([100, 28])
    for replica in plan.replicas:
        for s, stage in enumerate(replica.stages):
            lines = cost.stage_cost(stage, last=s == len(replica.stages) - 1)
            for member, rank in enumerate(stage.ranks):
                _, tokens, squares = found[rank].work(1, batch.tokens, batch.sum_sq_len)
                expected = tokens * (cost.attention_s + cost.mlp_s) + squares * cost.square_s
                assert lines.member_op_s(member, batch, OpKind.FORWARD) == pytest.approx(expected)


def test_peers_are_the_stage_of_all_replicas() -> None:
    assert peer_groups(shares(demo_plan(), DEMO_MODEL)) == {"s0": ("0", "1", "4", "5"), "s1": ("2", "3", "6", "7")}

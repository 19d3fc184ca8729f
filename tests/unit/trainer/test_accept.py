"""Orders to install a plan: both forms of plans and placements, and what is refused."""

from __future__ import annotations

import pytest

from resihp_messages import link
from resihp_messages.placement import NodeRanks, PackedPlacement
from resihp_plan import ParallelPlan
from resihp_plan.compact import compact
from resihp_trainer.accept import PlanUnusable, accept, base_plans
from support.plans import DEMO_MODEL, demo_plan

PARTS = (NodeRanks(node="n0", ranks=(0, 1, 2, 3), starts=(0, 0, 0, 1)), NodeRanks(node="n1", ranks=(4, 5, 6, 7)))


def _order(plan: ParallelPlan, *, many: bool) -> link.InstallPlan:
    """As the agent hands it on, of few or of many ranks."""
    order = link.InstallPlan(
        mode="recovery",
        epoch=plan.epoch,
        reconfiguration_id="r",
        plan=compact(plan.to_dict()) if many else plan.to_dict(),
        digest=plan.digest,
        base_plans=(compact(demo_plan().to_dict()) if many else demo_plan().to_dict(),),
        store_address="n0:1",
        placement=PackedPlacement.of(PARTS) if many else PARTS,
    )
    return link.InstallPlan.model_validate(order.model_dump(mode="json"))


@pytest.mark.parametrize("many", [False, True])
def test_both_forms_are_the_same_plan(many: bool) -> None:
    plan = demo_plan(epoch=2)
    order = _order(plan, many=many)
    found = accept(order, rank=5, model=DEMO_MODEL, num_micro_batches=8, newest_epoch=1, dead={3: 0})
    assert found == plan
    assert base_plans(order) == (demo_plan(),)
    with pytest.raises(PlanUnusable, match=r"ranks \[3\] are dead"):  # its newest start is gone, too
        accept(order, rank=5, model=DEMO_MODEL, num_micro_batches=8, newest_epoch=1, dead={3: 1})
    with pytest.raises(PlanUnusable, match="epoch: 2 is not newer than 2"):
        accept(order, rank=5, model=DEMO_MODEL, num_micro_batches=8, newest_epoch=2, dead={})


def test_a_damaged_plan_is_refused() -> None:
    order = _order(demo_plan(epoch=2), many=True)
    broken = order.model_copy(update={"plan": {"compact": str(order.plan["compact"])[:-12]}})
    with pytest.raises(PlanUnusable, match="not a plan"):
        accept(broken, rank=5, model=DEMO_MODEL, num_micro_batches=8, newest_epoch=1, dead={})

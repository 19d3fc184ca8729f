"""What predictions and decisions rest on, beside plan, devices and batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from resihp_plan.cluster import Cluster
from resihp_plan.cost import CostModel
from resihp_plan.memory import MemoryModel
from resihp_plan.model import ModelSpec
from resihp_plan.plan import Schedule
from resihp_plan.planner.price import Price
from resihp_plan.workload import Workload


@dataclass(frozen=True)
class Assumptions:
    """Of `plan_change` and of `what_if`."""

    cost: CostModel | None = None
    """None: `CostModel.for_model`."""
    memory: MemoryModel | None = None
    """Limits that plans must keep; None: those of the cluster's devices."""
    price: Price = field(default_factory=Price)
    schedules: tuple[Schedule, ...] = ()
    """Those that may be chosen beside the plan's own, such as `plan.schedule.family`; by default none: whoever started
    the job has chosen."""

    def cost_of(self, model: ModelSpec) -> CostModel:
        return self.cost or CostModel.for_model(model)

    def memory_of(self, cluster: Cluster, model: ModelSpec, workload: Workload) -> MemoryModel | None:
        size = self.cost_of(model).bytes_per_element
        return self.memory or MemoryModel.of(cluster, model, workload.tokens_per_micro_batch, size)

"""What would these faults cost? Now, if nobody acts, and with the best plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from resihp_plan.cluster import Cluster, Health
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan
from resihp_plan.planner.assumptions import Assumptions
from resihp_plan.planner.change import plan_change, step_s_at
from resihp_plan.planner.decision import Decision
from resihp_plan.workload import Workload


@dataclass(frozen=True)
class WhatIf:
    """Predicted throughputs in tokens/s."""

    now: float
    do_nothing: float
    """With the faults and the plan as it is; 0 if a device of the plan is lost."""
    best: Decision
    break_even_s: float | None
    """When the best plan has made up for the time of the change; None if it is no faster than doing nothing."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "now_tokens_per_s": self.now,
            "do_nothing_tokens_per_s": self.do_nothing,
            "best_tokens_per_s": self.best.predicted_tokens_per_s,
            "bound_tokens_per_s": self.best.bound_tokens_per_s,
            "change_s": self.best.change_s,
            "bytes_moved": self.best.bytes_moved,
            "break_even_s": self.break_even_s,
            "decision": self.best.to_dict(),
        }


def what_if(
    plan: ParallelPlan,
    model: ModelSpec,
    cluster: Cluster,
    health: Health,
    workload: Workload,
    *,
    clock: Callable[[], float],
    assuming: Assumptions | None = None,
    links: Health | None = None,
) -> WhatIf:
    """Compare for `health` (rank -> p; 0: lost) and `links` (rank -> bandwidth relative to now). Raises what
    `plan_change` raises."""
    given = assuming or Assumptions()
    healthy = given.cost_of(model)
    after = {r: f * healthy.link_of.get(r, 1.0) for r, f in (links or {}).items()}
    costs = replace(healthy, link_of={**healthy.link_of, **after})
    now = workload.tokens / step_s_at(plan, workload, healthy, cluster.speeds({}))
    idle = workload.tokens / step_s_at(plan, workload, costs, cluster.speeds(health))
    best = plan_change(plan, model, cluster, health, workload, clock=clock, assuming=replace(given, cost=costs))
    gain = best.predicted_tokens_per_s - idle
    pause = best.change_s or 0.0
    even = pause * best.predicted_tokens_per_s / gain if gain > 1e-9 * now else None
    return WhatIf(now, idle, best, even)

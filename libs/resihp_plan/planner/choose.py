"""The healthy plan from nothing: degrees, layers and micro-batches; and the tuned reference of all ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from resihp_plan.cluster import Cluster
from resihp_plan.cost import CostModel
from resihp_plan.memory import MemoryModel
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan, Schedule
from resihp_plan.planner.decision import Infeasible, InfeasibleKind
from resihp_plan.planner.initial import plan_initial
from resihp_plan.planner.polish import polish
from resihp_plan.planner.shape import shape_of
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker
from resihp_plan.workload import Workload


@dataclass(frozen=True)
class Chosen:
    """A healthy plan with its prediction."""

    tp: int
    pp: int
    dp: int
    plan: ParallelPlan
    step_s: float


def tuned(
    plan: ParallelPlan,
    cluster: Cluster,
    workload: Workload,
    cost: CostModel,
    *,
    memory: MemoryModel | None = None,
    schedules: Sequence[Schedule] | None = None,
) -> tuple[ParallelPlan, float]:
    """`plan` with the best layers that all its equal replicas can have, and its predicted seconds.

    `schedules`: others that may be taken.

    Without this the head makes the last stage of an even division the slowest, and any re-planned layout looks like a
    gain. Raises `Infeasible` (memory) if no division fits.
    """
    maker = GroupMaker(cost, workload.micro_batch, cluster.speeds({}), memory)
    given = shape_of(plan, maker)
    assert given is not None  # a valid plan
    found: list[tuple[float, ParallelPlan]] = []
    for schedule in (plan.schedule, *(s for s in schedules or () if s is not plan.schedule)):
        space = Space(maker, workload, schedule)
        shape = space.shape(given.pipelines)
        if shape is not None:
            best = polish(space, shape, rounds=32)
            found.append((space.step_s(best), best.plan(plan.epoch, sorted(set(plan.standby)))))
    if not found:
        raise Infeasible(InfeasibleKind.MEMORY, f"no division of {cost.model.num_layers} layers fits into the devices")
    step_s, best_plan = min(found, key=lambda f: f[0])
    return best_plan, step_s


def choose_initial(
    cluster: Cluster,
    model: ModelSpec,
    workload: Workload,
    cost: CostModel,
    *,
    memory: MemoryModel | None = None,
    max_tp: int | None = None,
) -> tuple[Chosen, ...]:
    """Every (TP, PP, DP) that uses all devices and fits, tuned, fastest first.

    TP groups stay on a node; `max_tp`: no larger degree. Raises `Infeasible` if nothing fits.
    """
    num_devices = len(cluster.ranks)
    by_node: dict[str, int] = {}
    for device in cluster.devices:
        by_node[device.node] = by_node.get(device.node, 0) + 1
    found: list[Chosen] = []
    for tp in _divisors(num_devices):
        if any(n % tp for n in by_node.values()) or (max_tp is not None and tp > max_tp):
            continue
        for pp in _divisors(num_devices // tp):
            dp = num_devices // tp // pp
            try:
                even = plan_initial(cluster, model, tp, pp, dp, workload.num_micro_batches)
                plan, step_s = tuned(even, cluster, workload, cost, memory=memory)
            except Infeasible:
                continue
            found.append(Chosen(tp, pp, dp, plan, step_s))
    if not found:
        raise Infeasible(InfeasibleKind.MEMORY, f"no degrees fit {num_devices} devices")
    return tuple(sorted(found, key=lambda c: (c.step_s, c.tp, c.pp)))


def with_standby(plan: ParallelPlan, cluster: Cluster) -> ParallelPlan:
    """Devices of the cluster that the plan leaves out stand by."""
    return replace(plan, standby=tuple(r for r in cluster.ranks if r not in set(plan.active)))


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)

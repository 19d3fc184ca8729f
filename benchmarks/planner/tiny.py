"""The search against every plan there is, for four devices on nodes of their own."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks import report
from benchmarks.planner.cells import Cells
from resihp_plan import Cluster, CostModel, ModelSpec, Schedule, Workload
from resihp_plan.planner import Assumptions, plan_change, plan_initial
from resihp_plan.planner.shape import Layers, Pipeline, Shape
from resihp_plan.planner.space import Space
from resihp_plan.planner.tpgroups import GroupMaker

CASES = 120
MODEL = ModelSpec(num_layers=6)
CLUSTER = Cluster.of(4, devices_per_node=1)
WORKLOAD = Workload.typical(6, 128)
COST = CostModel.for_model(MODEL)
SPEEDS = (1.0, 1.0, 0.9, 0.75, 0.5, 0.3, 0.0)


def _orders(ranks: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every division of some of the devices into one or two ordered pipelines."""
    for n in range(1, len(ranks) + 1):
        for order in itertools.permutations(ranks, n):
            yield (order,)
            for cut in range(1, n):
                if order[0] < order[cut]:  # else: the same two pipelines
                    yield order[:cut], order[cut:]


def _divisions(num_stages: int) -> list[Layers]:
    return [
        tuple(b - a for a, b in itertools.pairwise((0, *cuts, MODEL.num_layers)))
        for cuts in itertools.combinations(range(1, MODEL.num_layers), num_stages - 1)
    ]


def best_of_all(health: Mapping[int, float]) -> float:
    """Seconds of the fastest plan without exchanged units: every order, layer division and count."""
    maker = GroupMaker(COST, WORKLOAD.micro_batch, health, None)
    space = Space(maker, WORKLOAD)
    group = {r: g for r in CLUSTER.ranks if maker.is_up(r) and (g := maker.given((r,), (1,))) is not None}
    total, best = WORKLOAD.num_micro_batches, float("inf")
    for orders in _orders(tuple(group)):
        pipelines: list[Pipeline] = [tuple(group[r] for r in order) for order in orders]
        any_shape = Shape(tuple(pipelines), tuple(_divisions(len(p))[0] for p in pipelines), (total,) * len(pipelines))
        fastest: list[list[float]] = []
        for p in pipelines:  # the best layers for every count
            wanted = [(p, layers, m) for m in range(total + 1) for layers in _divisions(len(p))]
            times = space.replica_s(any_shape, wanted)
            fastest.append([min(t for t, w in zip(times, wanted, strict=True) if w[2] == m) for m in range(total + 1)])
        sync = min(
            space.sync_s(Shape(tuple(pipelines), layers, any_shape.counts))
            for layers in itertools.product(*(_divisions(len(p)) for p in pipelines))
        )
        if len(fastest) == 1:
            seconds = fastest[0][total]
        else:
            seconds = min(max(fastest[0][m], fastest[1][total - m]) for m in range(total + 1))
        best = min(best, seconds + sync)
    return best


def case(seed: int) -> float:
    rng = random.Random(f"tiny/{seed}")
    health = {r: p for r in CLUSTER.ranks if (p := rng.choice(SPEEDS)) != 1.0}
    if all(health.get(r, 1.0) == 0.0 for r in CLUSTER.ranks):
        health = {0: 0.5}
    plan = plan_initial(CLUSTER, MODEL, 1, 2, 2, WORKLOAD.num_micro_batches)
    found = plan_change(plan, MODEL, CLUSTER, health, WORKLOAD, clock=lambda: 0.0, assuming=Assumptions(COST))
    assert found.plan.schedule is Schedule.ONE_F_ONE_B
    return best_of_all(health) / found.predicted_step_s


def tiny(cells: Cells) -> str:
    """A table."""
    ratios = [cells.get(f"tiny/{seed}", partial(case, seed)) for seed in range(CASES)]
    exact = sum(r > 0.9999 for r in ratios)
    row = [CASES, f"{statistics.mean(ratios):.4f}", f"{min(ratios):.4f}", f"{max(ratios):.4f}", exact]
    return report.table(["cases", "mean optimum / found", "worst", "best (above 1: exchanged units)", "optimal"], [row])

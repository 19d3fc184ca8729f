"""Workload-aware slicing against packing in order and first fit, dealt out in turn, on lognormal document lengths."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks import report
from resihp_plan import (
    Cluster,
    CostModel,
    Document,
    MicroBatchWork,
    ModelSpec,
    ParallelPlan,
    Workload,
    program,
    simulate,
    slice_batch,
)
from resihp_plan.plan import known_speeds
from resihp_plan.planner import Assumptions, plan_change, plan_initial

LENGTHS = {"code": (7.34, 1.52), "web": (7.09, 1.01)}
"""Lognormal (mu, sigma) in tokens, fitted to public corpora."""
MODEL = ModelSpec(16, 2048, 16, 16, 5504, mlp_block=128, vocab_size=32_000, vocab_block=128)
MICRO_BATCHES = 16
Bins = list[list[int]]


def _documents(rng: random.Random, name: str, budget: int) -> tuple[list[Document], Bins]:
    """A batch as it is drawn: documents in order of arrival until the micro-batches are full; and that packing."""
    mu, sigma = LENGTHS[name]
    found: list[Document] = []
    bins: Bins = [[]]
    used = 0
    while True:
        length = min(max(8, int(rng.lognormvariate(mu, sigma))), budget)
        if used + length > budget:
            if len(bins) == MICRO_BATCHES:
                return found, bins
            bins.append([])
            used = 0
        bins[-1].append(len(found))
        found.append(Document(len(found), length))
        used += length


def _first_fit(documents: Sequence[Document], budget: int) -> Bins:
    """Longest first, each into the first micro-batch with room."""
    bins: Bins = [[] for _ in range(MICRO_BATCHES)]
    free = [budget] * MICRO_BATCHES
    for d in sorted(documents, key=lambda d: -d.length):
        m = next((m for m in range(MICRO_BATCHES) if free[m] >= d.length), None)
        if m is None:
            raise ValueError("first fit leaves a document out")
        bins[m].append(d.id)
        free[m] -= d.length
    return bins


def _in_turn(work: Sequence[MicroBatchWork], plan: ParallelPlan) -> list[list[MicroBatchWork]]:
    """Round robin over replicas that still have room."""
    dealt: list[list[MicroBatchWork]] = [[] for _ in plan.replicas]
    a = 0
    for w in work:
        while len(dealt[a]) == plan.replicas[a].num_micro_batches:
            a = (a + 1) % len(dealt)
        dealt[a].append(w)
        a = (a + 1) % len(dealt)
    return dealt


def _seconds(
    plan: ParallelPlan, work: Sequence[Sequence[MicroBatchWork]], cost: CostModel, health: Mapping[int, float]
) -> float:
    return simulate(plan, program(plan), tuple(tuple(w) for w in work), cost, health=health).makespan_s


def _plans(cost: CostModel) -> list[tuple[str, ParallelPlan, dict[int, float]]]:
    """Healthy; a slow device under the old plan, whose ranks only know it; and under the plan for it."""
    cluster = Cluster.of(8)
    plan = plan_initial(cluster, MODEL, 2, 2, 2, MICRO_BATCHES)
    slow = {5: 0.5}
    told = ParallelPlan(2, plan.replicas, speeds=known_speeds(slow, plan.active))
    workload = Workload.typical(MICRO_BATCHES, 16_384)
    changed = plan_change(plan, MODEL, cluster, slow, workload, clock=lambda: 0.0, assuming=Assumptions(cost)).plan
    return [("healthy", plan, {}), ("one at 0.5, old plan", told, slow), ("one at 0.5, new plan", changed, slow)]


def slicing(seeds: int) -> str:
    """A table of mean iteration times relative to ours."""
    cost = CostModel.for_model(
        MODEL, flops_per_s=131e12, collective_latency_s=2e-5, transfer_latency_s=2e-5, bytes_per_s=22e9,
        tp_bytes_per_s=200e9, bytes_per_element=2,
    )  # fmt: skip
    rows = []
    plans = _plans(cost)
    for name in LENGTHS:
        for budget in (8192, 16_384, 32_768):
            for what, plan, health in plans:
                ratios: dict[str, list[float]] = {"in order": [], "first fit": []}
                spread = []
                for seed in range(seeds):
                    documents, drawn = _documents(random.Random(f"{name}/{budget}/{seed}"), name, budget)
                    sliced = slice_batch(documents, plan, MODEL, tokens_per_micro_batch=budget)
                    ours = _seconds(plan, sliced.work, cost, health)
                    for how, bins in (("in order", drawn), ("first fit", _first_fit(documents, budget))):
                        packed = [MicroBatchWork.of(documents[i].length for i in b) for b in bins]
                        ratios[how].append(_seconds(plan, _in_turn(packed, plan), cost, health) / ours)
                        if how == "in order":
                            seconds = [cost.layer_s(w) for w in packed]
                            spread.append(max(seconds) / (sum(seconds) / len(seconds)))
                rows.append(
                    [name, budget // 1024, what, f"{sum(spread) / seeds:.2f}"]
                    + [f"{sum(r) / seeds:.3f} ({min(r):.3f})" for r in ratios.values()]
                )
    head = [
        "lengths",
        "K tokens",
        "devices",
        "heaviest / mean micro-batch in order",
        "in order, in turn / ours (worst)",
        "first fit, in turn / ours (worst)",
    ]
    return report.table(head, rows)

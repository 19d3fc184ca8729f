"""Workload-aware slicing against first-fit packing and round robin, on lognormal document lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks import report
from resihp_plan import (
    Cluster,
    CostModel,
    Document,
    MicroBatchWork,
    ModelSpec,
    ParallelPlan,
    program,
    simulate,
    slice_batch,
)
from resihp_plan.planner import plan_initial

LENGTHS = {"code": (7.34, 1.52), "web": (7.09, 1.01)}
"""Lognormal (mu, sigma) in tokens, fitted to public corpora."""
MODEL = ModelSpec(16, 2048, 16, 16, 5504, mlp_block=128, vocab_size=32_000, vocab_block=128)
MICRO_BATCHES = 16


def _documents(rng: random.Random, name: str, budget: int) -> list[Document]:
    mu, sigma = LENGTHS[name]
    found: list[Document] = []
    left = int(0.93 * budget * MICRO_BATCHES)
    while left > 0:
        length = min(max(8, int(rng.lognormvariate(mu, sigma))), budget, left)
        found.append(Document(len(found), length))
        left -= length
    return found


def _first_fit(documents: Sequence[Document], budget: int) -> list[list[int]]:
    """In order of arrival, each into the first micro-batch with room."""
    bins: list[list[int]] = [[] for _ in range(MICRO_BATCHES)]
    free = [budget] * MICRO_BATCHES
    for d in sorted(documents, key=lambda d: -d.length):  # decreasing, or it may not fit
        m = next((m for m in range(MICRO_BATCHES) if free[m] >= d.length), None)
        if m is None:
            raise ValueError("first fit leaves a document out")
        bins[m].append(d.id)
        free[m] -= d.length
    return bins


def _seconds(
    plan: ParallelPlan, work: Sequence[Sequence[MicroBatchWork]], cost: CostModel, health: dict[int, float]
) -> float:
    return simulate(plan, program(plan), tuple(tuple(w) for w in work), cost, health=health).makespan_s


def slicing(seeds: int) -> str:
    """A table of mean iteration times relative to ours."""
    cluster = Cluster.of(8)
    plan = plan_initial(cluster, MODEL, 2, 2, 2, MICRO_BATCHES)
    cost = CostModel.for_model(
        MODEL, flops_per_s=131e12, collective_latency_s=2e-5, transfer_latency_s=2e-5, bytes_per_s=22e9,
        tp_bytes_per_s=200e9, bytes_per_element=2,
    )  # fmt: skip
    half = MICRO_BATCHES // 2
    rows = []
    for name in LENGTHS:
        for budget in (8192, 16_384, 32_768):
            for health in ({}, {5: 0.5}):
                ratios: dict[str, list[float]] = {"first fit": [], "round robin": []}
                spread = []
                for seed in range(seeds):
                    documents = _documents(random.Random(f"{name}/{budget}/{seed}"), name, budget)
                    sliced = slice_batch(documents, plan, MODEL, tokens_per_micro_batch=budget, speed=health)
                    ours = _seconds(plan, sliced.work, cost, health)
                    packed = [MicroBatchWork.of(documents[i].length for i in b) for b in _first_fit(documents, budget)]
                    seconds = [cost.layer_s(w) for w in packed]
                    spread.append(max(seconds) / (sum(seconds) / len(seconds)))
                    in_order = [packed[:half], packed[half:]]
                    dealt = [packed[0::2], packed[1::2]]
                    ratios["first fit"].append(_seconds(plan, in_order, cost, health) / ours)
                    ratios["round robin"].append(_seconds(plan, dealt, cost, health) / ours)
                rows.append(
                    [name, budget // 1024, "one at 0.5" if health else "healthy", f"{sum(spread) / seeds:.2f}"]
                    + [f"{sum(r) / seeds:.3f}" for r in ratios.values()]
                )
    head = [
        "lengths",
        "K tokens",
        "devices",
        "heaviest / mean micro-batch (first fit)",
        "first fit / ours",
        "round robin / ours",
    ]
    return report.table(head, rows)

"""Seconds and memory of one planning at many devices, one in 16 of them faulty."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Sequence

from benchmarks import report
from benchmarks.planner.settings import Setting
from resihp_plan.planner import plan_change

PER_REPLICA = 64
"""TP 4 x PP 16 of the 70B model."""


def planning_times(sizes: Sequence[int]) -> str:
    """A table; wall and CPU seconds (the machine may be busy)."""
    rows = []
    for number in sizes:
        setting = (
            Setting("70B", 4, number // PER_REPLICA, 16, 64, "4pp")
            if number > PER_REPLICA
            else Setting("30B", 4, number // 32, 8, 32, "4pp")
        )
        rng = random.Random(number)
        hit = rng.sample(range(number), max(1, number // 16))
        health = {r: 0.0 if i % 2 else rng.choice([0.9, 0.75, 0.5]) for i, r in enumerate(hit)}
        plan = setting.healthy[0]
        wall, cpu = time.monotonic(), time.process_time()
        decision = plan_change(
            plan, setting.cost.model, setting.cluster, health, setting.workload, clock=time.monotonic,
            cost=setting.cost, memory=setting.memory,
        )  # fmt: skip
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        peak = 0.0
        if number <= 256:  # tracing makes planning several times slower
            tracemalloc.start()
            plan_change(
                plan, setting.cost.model, setting.cluster, health, setting.workload, clock=time.monotonic,
                cost=setting.cost, memory=setting.memory,
            )  # fmt: skip
            peak = tracemalloc.get_traced_memory()[1] / 2**20
            tracemalloc.stop()
        ratio = decision.predicted_tokens_per_s / decision.bound_tokens_per_s
        memory = f"{peak:.0f} MiB" if peak else "-"
        rows.append([number, len(hit), f"{wall:.2f}", f"{cpu:.2f}", memory, decision.name, f"{ratio:.3f}"])
        print(rows[-1], flush=True)
    head = ["devices", "faulty", "wall s", "CPU s", "peak memory", "chosen", "throughput / bound"]
    return report.table(head, rows)

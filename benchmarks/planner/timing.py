"""Seconds and memory of one planning at many devices, one in 16 of them faulty."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence

from benchmarks import report
from benchmarks.planner.settings import Setting
from resihp_plan.planner import Assumptions, Effort, plan_change
from resihp_plan.planner.timeline import timeline

PER_REPLICA = 64
"""TP 4 x PP 16 of the 70B model."""
FULL_ONLY_ABOVE = 512
"""Beyond, the full effort is the fast one."""


def planning_times(sizes: Sequence[int]) -> str:
    """A table; the machine may be busy, so CPU seconds beside those of the clock."""
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
        efforts = {"fast": Effort.fast(number), "full": Effort.for_devices(number)}
        if number > FULL_ONLY_ABOVE:
            del efforts["fast"]
        for name, effort in efforts.items():
            timeline.cache_clear()
            runs = [_run(setting, health, effort) for _ in range(2)]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            times = [f"{wall:.2f} ({cpu:.2f})" for wall, cpu, _, _ in runs]
            rows.append([number, len(hit), name, *times, f"{peak:.0f} MiB", runs[0][2], f"{runs[0][3]:.3f}"])
            print(rows[-1], flush=True)
    head = [
        "devices",
        "faulty",
        "effort",
        "first: s (CPU s)",
        "again: s (CPU s)",
        "process so far",
        "chosen",
        "/ bound",
    ]
    return report.table(head, rows)


def _run(setting: Setting, health: dict[int, float], effort: Effort) -> tuple[float, float, str, float]:
    plan = setting.healthy[0]
    wall, cpu = time.monotonic(), time.process_time()
    decision = plan_change(
        plan, setting.cost.model, setting.cluster, health, setting.workload, clock=time.monotonic,
        assuming=Assumptions(setting.cost, setting.memory), effort=effort,
    )  # fmt: skip
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    return wall, cpu, decision.name, decision.predicted_tokens_per_s / decision.bound_tokens_per_s

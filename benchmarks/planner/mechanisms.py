"""The paper's figure 11: ReCycle with one of ResiHP's mechanisms, for losses as in its table 6."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from functools import partial

from benchmarks import report
from benchmarks.planner.cells import Cells, OutOfTime
from benchmarks.planner.policies import mean_ci
from benchmarks.planner.settings import Setting, paper_setting
from resihp_plan.planner import baselines

ABLATED = ("exclusion", "repartition", "migration")
MECHANISMS: Mapping[str, tuple[str, int, int, tuple[str, str, str]]] = {
    "7B": ("2 h", 4, 20, ("+1.01", "+0.18", "+1.03")),
    "13B": ("1 h", 2, 20, ("+1.82", "+0.22", "+1.16")),
    "30B": ("30 min", 1, 20, ("+1.47", "+0.17", "+0.24")),
}
"""Model -> time between losses, part of the 30-minute series, seeds, what the paper reads as a gain over ReCycle."""


def mechanisms(cells: Cells) -> str:
    """Each of ResiHP's mechanisms on its own over ReCycle, for losses as in table 6 (figure 11); of the models that are
    complete."""
    rows = []
    for model, (every, part, seeds, paper) in MECHANISMS.items():
        gains: dict[str, list[float]] = {name: [] for name in ABLATED}
        try:
            for seed in range(seeds):
                known = cells.get(f"mechanisms/{model}/{seed}", partial(_each_alone, paper_setting(model), seed, part))
                for name, gain in gains.items():
                    gain.append(known[name] / known["recycle"] - 1)
        except OutOfTime:
            continue
        row = [f"{name}: {there} / {mean_ci(gain)}" for (name, gain), there in zip(gains.items(), paper, strict=True)]
        rows.append([f"{model}, a loss every {every}", seeds, *row])
    return report.table(["throughput over ReCycle's: paper / here", "seeds", *("",) * len(ABLATED)], rows)


def _each_alone(setting: Setting, seed: int, part: int) -> dict[str, float]:
    """Mean samples/s of the series; 0 from where a policy cannot go on."""
    n = len(setting.cluster.ranks)
    order = random.Random(f"kills/{setting.model}/{seed}").sample(range(n), n // 2)
    found: dict[str, list[float]] = {name: [] for name in ("recycle", *ABLATED)}
    for lost in range(n // 2 // part):
        spaces = [setting.arena.space(dict.fromkeys(order[:lost], 0.0), s) for s in setting.arena.allowed]
        for name, rates in found.items():
            chosen = {what: what == name for what in ABLATED}
            stopped = lost > 0 and rates[-1] == 0.0
            shapes = (
                []
                if stopped
                else [(x, s) for x in spaces for s in baselines.mechanisms(setting.healthy[0], x, **chosen)]
            )
            steps = [x.step_s(s) for x, s in shapes if x.fits(s)]
            rates.append(setting.workload.num_micro_batches / min(steps) if steps else 0.0)
    return {name: statistics.mean(rates) for name, rates in found.items()}

"""The paper's own figures (arXiv 2605.06374 v2, section 8) beside the same quantities here."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from functools import partial

from benchmarks import report
from benchmarks.planner.cells import Cells, OutOfTime
from benchmarks.planner.policies import best_healthy_s, mean_ci
from benchmarks.planner.settings import Setting, paper_setting
from resihp_plan import simulate
from resihp_plan.planner.policies import Policy, evaluate
from resihp_plan.program import program

TABLE_6: Mapping[str, Mapping[str, tuple[str, str, str]]] = {
    "7B": {"healthy": ("8.22",) * 3, "oobleck": ("6.04", "4.59", "-"), "recycle": ("4.16", "3.94", "-"),
           "resihp-paper": ("7.55", "6.48", "5.46")},
    "13B": {"healthy": ("8.05",) * 3, "oobleck": ("6.47", "4.79", "-"), "recycle": ("4.91", "4.66", "-"),
            "resihp-paper": ("7.95", "7.23", "5.95")},
    "30B": {"healthy": ("5.05",) * 3, "oobleck": ("4.48", "3.31", "-"), "recycle": ("3.48", "3.36", "-"),
            "resihp-paper": ("4.80", "4.38", "3.53")},
}  # fmt: skip
"""Samples/s with a loss every 2 h, 1 h, 30 min; "-": aborted."""
FAIL_SLOW = {"7B": (1.81, 2.47, 3.31), "13B": (1.66, 2.40, 3.20), "30B": (1.52, 2.02, 2.51)}
"""ResiHP / unmitigated at weak, medium, severe."""
AMPLIFICATION = {"static": 25.43, "resihp-paper": 11.14}
MIXED = {Policy.RECYCLE: "1.48 to 4.39", Policy.S_RECYCLE: "1.22 to 4.32", Policy.S_OOBLECK: "1.04 to 3.57"}
"""ResiHP / these, over all of the paper's models."""
SEEDS = {"7B": 20, "13B": 20, "30B": 20}
"""Series per model; those of the larger models take minutes each."""
KILLED = (Policy.OOBLECK, Policy.RECYCLE, Policy.RESIHP_PAPER, Policy.RESIHP)


def table_6(cells: Cells) -> str:
    """Losses one after the other until half of the devices are gone at the end of the 30-minute series; of the models
    that are complete."""
    rows = []
    for model, seeds in SEEDS.items():
        setting = paper_setting(model)
        try:
            series = [cells.get(f"table 6/{model}/{seed}", partial(_kills, setting, seed)) for seed in range(seeds)]
        except OutOfTime:
            continue
        samples = setting.workload.num_micro_batches
        rows.append([model, "healthy", *_both(TABLE_6[model]["healthy"], [f"{samples / setting.healthy[1]:.2f}"] * 3)])
        best = f"{samples / _best_healthy_s(cells, setting):.2f}"
        rows.append([model, "healthy, best known", *_both(("",) * 3, [best] * 3)])
        for policy in KILLED:
            ours = []
            for part in (4, 2, 1):  # a loss every 2 h: a quarter of those of the 30-minute series in the same time
                steps = [s[policy][: len(s[policy]) // part] for s in series]
                stopped = sum(None in each for each in steps)
                means = [statistics.mean(samples / x if x else 0.0 for x in each) for each in steps]
                ours.append(mean_ci(means) + (f" (x{stopped})" if stopped else ""))
            rows.append([model, policy, *_both(TABLE_6[model].get(policy, ("",) * 3), ours)])
    head = ["model", "policy", *(f"{when}: {who}" for when in ("2 h", "1 h", "30 min") for who in ("paper", "here"))]
    return report.table(head, rows)


def _both(paper: tuple[str, ...], here: list[str]) -> list[str]:
    return [text for pair in zip(paper, here, strict=True) for text in pair]


def _kills(setting: Setting, seed: int) -> dict[str, list[float | None]]:
    """Policy -> seconds per iteration after no, one, two ... losses."""
    n = len(setting.cluster.ranks)
    order = random.Random(f"kills/{setting.model}/{seed}").sample(range(n), n // 2)
    found: dict[str, list[float | None]] = {p: [] for p in KILLED}
    for lost in range(n // 2):
        health = dict.fromkeys(order[:lost], 0.0)
        for policy in KILLED:
            ended = lost > 0 and found[policy][-1] is None
            found[policy].append(None if ended else evaluate(policy, setting.arena, health).step_s)
    return found


def fail_slow(cells: Cells, seeds: int) -> str:
    """From the cases of the study."""
    rows = []
    for model, paper in FAIL_SLOW.items():
        for name, known in zip(("weak", "medium", "severe"), paper, strict=True):
            ratios: dict[Policy, list[float]] = {Policy.RESIHP_PAPER: [], Policy.RESIHP: []}
            for seed in range(seeds):
                steps = cells.known.get(f"{model} paper/{name}/{seed}")
                if steps is None:
                    continue  # "-" in the table if there is none
                for policy, each in ratios.items():
                    each.append(steps[Policy.STATIC][0] / steps[policy][0])
            rows.append([model, name, known, *(mean_ci(each) for each in ratios.values())])
    return report.table(["model", "slowness", "paper: ResiHP / unmitigated", "resihp-paper here", "resihp here"], rows)


def mixed(cells: Cells, seeds: int) -> str:
    """From the cases of the study: losses and slowness together."""
    rows = []
    for model in FAIL_SLOW:
        row: list[object] = [f"{model} paper"]
        for rival in MIXED:
            cases = [cells.known.get(f"{model} paper/mixed/{seed}") for seed in range(seeds)]
            pairs = [(c[rival][0], c[Policy.RESIHP_PAPER][0]) for c in cases if c is not None]
            stopped = sum(a is None for a, _ in pairs)
            row.append(mean_ci([a / b for a, b in pairs if a and b]) + (f" (x{stopped})" if stopped else ""))
        rows.append(row)
    rows.append(["paper (figure 10)", *MIXED.values()])
    return report.table(["resihp-paper /", *map(str, MIXED)], rows)


def amplification(cells: Cells) -> str:
    """13B on 32 devices, each in turn at half speed: lost device time / the slow device's own extra time."""
    setting = paper_setting("13B")
    policies = (Policy.STATIC, Policy.S_RECYCLE, Policy.S_OOBLECK, Policy.RESIHP_PAPER, Policy.RESIHP)
    plan = setting.healthy[0]
    healthy_s = _best_healthy_s(cells, setting)
    busy = simulate(plan, program(plan), setting.workload.work(plan), setting.cost).busy_s
    n = len(setting.cluster.ranks)
    row: list[object] = []
    for policy in policies:
        steps = [
            cells.get(
                f"amplification/{policy}/{rank}",
                partial(_slow_s, setting, policy, rank),
            )
            for rank in range(n)
        ]
        row.append(mean_ci([(s - healthy_s) * n / busy[r] for r, s in enumerate(steps)]))
    known = [AMPLIFICATION.get(p, "") for p in policies]
    return report.table(["", *policies], [["paper (figure 2)", *known], ["here", *row]])


def _best_healthy_s(cells: Cells, setting: Setting) -> float:
    """Some plans found for the study's faults are better ones for healthy devices, too."""
    best = cells.get(f"{setting.name}/healthy", partial(best_healthy_s, setting))
    cases = [v for k, v in cells.known.items() if k.startswith(f"{setting.name}/") and isinstance(v, dict)]
    return float(min([best, *(s[1] for case in cases for s in case.values() if s[1] is not None)]))


def _slow_s(setting: Setting, policy: Policy, rank: int) -> float | None:
    return evaluate(policy, setting.arena, {rank: 0.5}).step_s


def recurring(cells: Cells, seeds: int) -> str:
    """256 devices with about ten faults at a time (figure 14): 1.39x S-ReCycle, 1.11x S-Oobleck in the paper."""
    rows = []
    for regime in ("paper", "4pp"):
        for policy in (Policy.RESIHP_PAPER, Policy.RESIHP):
            row: list[object] = [f"70B {regime}", policy]
            for rival in (Policy.S_RECYCLE, Policy.S_OOBLECK):
                pairs = [cells.known.get(f"70B {regime}/recurring/{seed}") for seed in range(seeds)]
                row.append(mean_ci([p[rival][0] / p[policy][0] for p in pairs if p and p[rival][0] and p[policy][0]]))
            rows.append(row)
    return report.table(["setting", "policy", "/ s-recycle (paper: ResiHP 1.39)", "/ s-oobleck (paper: 1.11)"], rows)

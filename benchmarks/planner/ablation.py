"""What each ingredient is worth, alone and in pairs (some substitute for one another); uneven kernels; error in p."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks import report
from benchmarks.planner.cells import Cells
from benchmarks.planner.policies import best_healthy_s, health_of, mean_ci
from benchmarks.planner.settings import Setting, settings
from resihp_plan.planner import Switches
from resihp_plan.planner.policies import Arena, Policy, evaluate

OFF: tuple[tuple[str, ...], ...] = (
    (),
    ("uneven_tp",),
    ("layers",),
    ("counts",),
    ("regroup",),
    ("migration",),
    ("schedule",),
    ("polish",),
    ("layers", "migration"),
    ("counts", "migration"),
    ("uneven_tp", "layers"),
    ("uneven_tp", "migration"),
    ("uneven_tp", "layers", "migration"),
)
SCENARIOS = ("1 dead", "12.5% dead", "mixed")
PENALTIES = (0.0, 0.03, 0.05, 0.10, 0.15)
ERRORS = (0.01, 0.02, 0.03, 0.05, 0.10)


def _setting(penalty: float = 0.0) -> Setting:
    return next(s for s in settings(penalty) if s.name == "13B paper")


def ablation(cells: Cells, seeds: int) -> str:
    """Throughput kept without some ingredients; other policies' plans are not among the candidates."""
    setting = _setting()
    rows = []
    for off in OFF:
        switches = replace(Switches(), rivals=False, **dict.fromkeys(off, False))
        arena = replace(setting.arena, switches=switches)
        row: list[object] = [", ".join(off) or "nothing"]
        for scenario in SCENARIOS:
            full = _steps(cells, setting, replace(arena, switches=Switches(rivals=False)), "nothing", scenario, seeds)
            less = _steps(cells, setting, arena, str(row[0]), scenario, seeds)
            kept = [a / b for a, b in zip(full, less, strict=True) if a and b]
            lost = sum(s is None for s in less)
            row.append(mean_ci(kept) + (f" (x{lost})" if lost else ""))
        rows.append(row)
    return report.table(["13B paper, without", *SCENARIOS], rows)


def _steps(
    cells: Cells, setting: Setting, arena: Arena, name: str, scenario: str, seeds: int
) -> Sequence[float | None]:
    return [
        cells.get(
            f"ablation/{name}/{scenario}/{seed}",
            partial(_step_s, arena, setting, scenario, seed),
        )
        for seed in range(seeds)
    ]


def _step_s(arena: Arena, setting: Setting, scenario: str, seed: int) -> float | None:
    return evaluate(Policy.RESIHP, arena, health_of(setting, scenario, seed)).step_s


def penalties(cells: Cells, seeds: int) -> str:
    """Throughput / best-known healthy with slower kernels in uneven TP groups."""
    rows = []
    for penalty in PENALTIES:
        setting = _setting(penalty)
        best = cells.get(f"penalty/{penalty}/healthy", partial(best_healthy_s, setting))
        row: list[object] = [f"{penalty:.0%}"]
        for scenario in SCENARIOS:
            steps = [
                cells.get(
                    f"penalty/{penalty}/{scenario}/{seed}",
                    partial(_step_s, setting.arena, setting, scenario, seed),
                )
                for seed in range(seeds)
            ]
            row.append(mean_ci([best / s for s in steps if s]))
        rows.append(row)
    return report.table(["13B paper, kernel penalty", *SCENARIOS], rows)


def errors(cells: Cells, seeds: int) -> str:
    """Throughput kept by the plan for speeds that are known with a lognormal error."""
    setting = _setting()
    rows = []
    for sigma in ERRORS:
        row: list[object] = [f"{sigma:.0%}"]
        for scenario in ("1 dead", "mixed"):
            kept = [
                cells.get(
                    f"error/{sigma}/{scenario}/{seed}",
                    partial(_kept, setting, scenario, seed, sigma),
                )
                for seed in range(seeds)
            ]
            row.append(f"{mean_ci(kept)} (worst {min(kept):.3f}, median {statistics.median(kept):.3f})")
        rows.append(row)
    return report.table(["13B paper, error in every p", "1 dead", "mixed"], rows)


def _kept(setting: Setting, scenario: str, seed: int, sigma: float) -> float:
    health = health_of(setting, scenario, seed)
    rng = random.Random(f"{sigma}/{seed}")
    ranks = setting.cluster.ranks
    seen = {r: min(1.0, health.get(r, 1.0) * rng.lognormvariate(0.0, sigma)) for r in ranks}
    truth = evaluate(Policy.RESIHP, setting.arena, health)
    guess = evaluate(Policy.RESIHP, setting.arena, seen).shape
    assert guess is not None
    assert truth.step_s is not None
    space = setting.arena.space(health, guess.schedule)
    groups = [tuple(g for x in p if (g := space.maker.given(x.ranks, x.weights)) is not None) for p in guess.pipelines]
    return truth.step_s / space.step_s(replace(guess, pipelines=tuple(groups)))

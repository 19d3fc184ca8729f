"""All policies in the paper's settings: throughput / best-known healthy plan, bound, ratios."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks import report
from benchmarks.planner.cells import Cells, OutOfTime
from benchmarks.planner.scenarios import LARGE, SCENARIOS, Scenario
from benchmarks.planner.settings import Setting
from resihp_plan.planner.policies import Policy, evaluate
from resihp_plan.planner.shape import Shape

POLICIES = tuple(p for p in Policy if p is not Policy.ADAPTRA)
"""Adaptra equals `restart` against slow computation and losses."""
RIVALS = (Policy.RESIHP_PAPER, Policy.S_OOBLECK, Policy.S_RECYCLE)


def mean_ci(values: Sequence[float]) -> str:
    """Mean and half width of its 95 % confidence interval (normal)."""
    if not values:
        return "-"
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


def scenarios_of(setting: Setting) -> Mapping[str, Scenario]:
    return LARGE if len(setting.cluster.ranks) > 64 else SCENARIOS


def health_of(setting: Setting, scenario: str, seed: int) -> Mapping[int, float]:
    rng = random.Random(f"{setting.name}/{scenario}/{seed}")
    return scenarios_of(setting)[scenario](len(setting.cluster.ranks), rng)


def best_healthy_s(setting: Setting) -> float:
    """Of the tuned plan and of what the search finds for healthy devices."""
    return min(setting.healthy[1], evaluate(Policy.RESIHP, setting.arena, {}).step_s or math.inf)


class Study:
    """The cases of some settings, and what they say."""

    def __init__(self, cells: Cells, settings: Sequence[Setting], seeds: int, large_seeds: int) -> None:
        """`large_seeds`: for 64 devices and more, whose cases take seconds each."""
        self.cells, self.settings, self.seeds, self.large_seeds = cells, settings, seeds, large_seeds
        self.cases = self.improved = 0

    def seeds_of(self, setting: Setting) -> range:
        return range(self.seeds if len(setting.cluster.ranks) < 64 else min(self.seeds, self.large_seeds))

    def run(self, faults: Collection[str] | None = None) -> bool:
        """Work the cases out, or those of some scenarios; False if any is left."""
        try:
            for setting, scenario, seed in self._cases():
                if faults is None or scenario in faults:
                    self._steps(setting, scenario, seed)
        except OutOfTime:
            return False
        return all(_key(*case) in self.cells.known for case in self._cases())

    def table(self) -> str:
        """Of what is complete. Raises SystemExit if a faulted case beats the best-known healthy plan."""
        head = [
            "setting",
            "faults",
            "seeds",
            "bound",
            *map(str, POLICIES),
            "ours / bound",
            *(f"ours / {r}" for r in RIVALS),
        ]
        rows = [row for setting in self.settings for row in self._rows(setting)]
        return f"{report.table(head, rows)}\n\n{_means(rows)}"

    def _cases(self) -> Iterator[tuple[Setting, str, int]]:
        for setting in self.settings:
            for scenario in scenarios_of(setting):
                for seed in self.seeds_of(setting):
                    yield setting, scenario, seed

    def _steps(self, setting: Setting, scenario: str, seed: int) -> Mapping[str, Sequence[float | None]]:
        """Policy -> seconds with the faults, and of the same shape on healthy devices."""

        def work() -> dict[str, list[float | None]]:
            health = health_of(setting, scenario, seed)
            found: dict[str, list[float | None]] = {}
            for policy in POLICIES:
                outcome = evaluate(policy, setting.arena, health)
                shape = outcome.shape
                found[policy] = [outcome.step_s, None if shape is None else _on_healthy(setting, shape)]
            return found

        known: Mapping[str, Sequence[float | None]] = self.cells.get(_key(setting, scenario, seed), work)
        return known

    def _rows(self, setting: Setting) -> Iterator[list[object]]:
        found = {
            name: [self._steps(setting, name, seed) for seed in self.seeds_of(setting)]
            for name in scenarios_of(setting)
            if all(_key(setting, name, seed) in self.cells.known for seed in self.seeds_of(setting))
        }
        if not found:
            return
        best = self.cells.get(f"{setting.name}/healthy", lambda: best_healthy_s(setting))
        for each in (steps for cases in found.values() for case in cases for steps in case.values()):
            self.cases += 1
            if each[1] is not None and each[1] < best * (1 - 1e-9):
                best, self.improved = each[1], self.improved + 1
        for name, cases in found.items():
            fastest = min(s[0] for case in cases for s in case.values() if s[0] is not None)
            if fastest < best * (1 - 1e-9):
                raise SystemExit(f"{setting.name}, {name}: {fastest:.6f} s with faults, {best:.6f} s healthy")
            bounds = [self._bound(setting, name, seed) for seed in self.seeds_of(setting)]
            yield _row(setting.name, name, bounds, best, {p: [case[p][0] for case in cases] for p in POLICIES})

    def _bound(self, setting: Setting, scenario: str, seed: int) -> float:
        lost = sum(1 - p for p in health_of(setting, scenario, seed).values())
        return 1 - lost / len(setting.cluster.ranks)


def _means(rows: Sequence[Sequence[object]]) -> str:
    """Geometric means over the settings, of those in which both policies went on: how targets are meant, since what is
    to be gained differs from shape to shape and ends at the bound."""
    faults = list(dict.fromkeys(row[1] for row in rows))
    columns = ["ours / bound", *(f"ours / {r}" for r in RIVALS)]
    found = []
    for fault in faults:
        of = [row for row in rows if row[1] == fault]
        cells: list[object] = [fault, len(of)]
        for column in range(-len(columns), 0):
            means = [float(str(row[column]).split()[0]) for row in of if row[column] != "-"]
            least = f" (least {min(means):.3f}, {len(means)})" if means else ""
            cells.append(f"{statistics.geometric_mean(means):.3f}{least}" if means else "-")
        found.append(cells)
    text = "Geometric means of these rows over the settings (in brackets the least of them, and how many there are):"
    return f"{text}\n\n{report.table(['faults', 'settings', *columns], found)}"


def _key(setting: Setting, scenario: str, seed: int) -> str:
    return f"{setting.name}/{scenario}/{seed}"


def _on_healthy(setting: Setting, shape: Shape) -> float | None:
    """Seconds of the same groups, layers and counts with all members healthy: a plan of the healthy cluster, too."""
    if any(r < 0 for p in shape.pipelines for g in p for r in g.ranks):
        return None  # a place without anybody
    space = setting.arena.space({}, shape.schedule)
    groups = [tuple(g for x in p if (g := space.maker.given(x.ranks, x.weights)) is not None) for p in shape.pipelines]
    return space.step_s(replace(shape, pipelines=tuple(groups)))


def _row(
    setting: str, name: str, bounds: list[float], best: float, steps: Mapping[Policy, Sequence[float | None]]
) -> list[object]:
    row: list[object] = [setting, name, len(bounds), f"{statistics.mean(bounds):.3f}"]
    for policy in POLICIES:
        reached = [best / s if s else 0.0 for s in steps[policy]]
        stopped = sum(s is None for s in steps[policy])
        row.append(f"{statistics.mean(reached):.3f}" + (f" (x{stopped})" if stopped else ""))
    ours = steps[Policy.RESIHP]
    row.append(mean_ci([best / o / b for o, b in zip(ours, bounds, strict=True) if o]))
    for rival in RIVALS:
        row.append(mean_ci([r / o for r, o in zip(steps[rival], ours, strict=True) if r and o]))
    return row

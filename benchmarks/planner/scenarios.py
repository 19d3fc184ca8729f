"""Faults by name, as a function of a seeded generator: rank -> p."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

Scenario = Callable[[int, random.Random], Mapping[int, float]]
"""(number of devices, generator) -> p of the devices that are not healthy."""


def dead(fraction: float) -> Scenario:
    """This fraction of the devices is lost, at least one."""
    return lambda n, rng: dict.fromkeys(rng.sample(range(n), max(1, round(n * fraction))), 0.0)


def slow(p: float) -> Scenario:
    """Two of 32 devices run at p: with p = 0.65, 0.45, 0.30 the unmitigated job loses 35, 55, 70 % (paper: W, M, S)."""
    return lambda n, rng: dict.fromkeys(rng.sample(range(n), max(1, n // 16)), p)


def mixed(n: int, rng: random.Random) -> Mapping[int, float]:
    """Losses and medium slowness: 2 and 3 of 32 devices."""
    hit = rng.sample(range(n), max(1, n // 16) + max(1, 3 * n // 32))
    lost = max(1, n // 16)
    return {r: 0.0 if i < lost else 0.45 for i, r in enumerate(hit)}


def recurring(n: int, rng: random.Random) -> Mapping[int, float]:
    """About 10 concurrent faults of 256 devices, as after a while of failures and re-joins: half of them losses."""
    hit = rng.sample(range(n), 10)
    return {r: 0.0 if i < 5 else rng.choice([0.9, 0.75, 0.5, 0.4, 0.1]) for i, r in enumerate(hit)}


SCENARIOS: Mapping[str, Scenario] = {
    "1 dead": dead(0.0),
    "12.5% dead": dead(0.125),
    "25% dead": dead(0.25),
    "50% dead": dead(0.5),
    "weak": slow(0.65),
    "medium": slow(0.45),
    "severe": slow(0.30),
    "mixed": mixed,
}
LARGE: Mapping[str, Scenario] = {"recurring": recurring, "1 dead": dead(0.0), "mixed": mixed}
"""For 256 devices."""

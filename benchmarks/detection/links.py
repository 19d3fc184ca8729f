"""Links: of many pipeline edges some become slower, while peers that arrive late make the healthy ones wait far
longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from resihp_detect import LinkLevel, VerdictKind

NUM_EDGES, FAULT_AT, STOP = 24, 40, 60


@dataclass
class LinkResult:
    """Of one slowdown."""

    found: int = 0
    total: int = 0
    wrong: int = 0


def run(slowdown: float, faults: int, rng: np.random.Generator) -> LinkResult:
    """One fault per job of 24 edges; transfers have 10 % noise, sizes vary by four, late peers by 20 transfers."""
    result = LinkResult()
    jobs = faults
    names = {f"job{j}": [f"job{j}.e{e}" for e in range(NUM_EDGES)] for j in range(jobs)}
    level = LinkLevel(names)
    culprit = rng.integers(0, NUM_EDGES, jobs)
    rows = np.arange(jobs)
    named: dict[str, set[str]] = {g: set() for g in names}
    for i in range(1, STOP):
        size = rng.uniform(0.5e6, 2e6, (jobs, NUM_EDGES))
        transfer = (1e-3 + 1e-8 * size) * np.exp(rng.normal(0, 0.1, size.shape))
        if i >= FAULT_AT:
            transfer[rows, culprit] *= slowdown
        late = rng.uniform(0, 20, size.shape) * transfer
        first = rng.random(size.shape) < 0.5  # which end arrives late
        waits = np.stack([transfer + np.where(first, late, 0.0), transfer + np.where(first, 0.0, late)], axis=-1)
        for v in level.observe(i, waits, size):
            if v.kind is VerdictKind.LINK_SLOW and v.device is not None:
                named[v.group].add(v.device)
    for j, group in enumerate(names):
        right = f"{group}.e{culprit[j]}"
        result.total += 1
        result.found += named[group] == {right}
        result.wrong += len(named[group] - {right})
    return result

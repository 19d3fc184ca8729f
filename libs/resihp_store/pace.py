"""How fast iterations were, of which a prediction can say how far it is off."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Protocol

SEEN = 64
"""Newest iterations that are looked at."""
NEWEST = 8
"""Those of an epoch whose median is its pace: a machine's load changes over minutes."""
FEWEST = 3


class Iteration(Protocol):
    """What is needed of one, wherever it was read."""

    @property
    def tokens(self) -> int: ...
    @property
    def step_s(self) -> float | None: ...


def settled_rate(rows: Sequence[Iteration]) -> float | None:
    """Median tokens/s of an epoch's newest iterations, without its first (which warms up, or was redone).

    None before there are enough of them.
    """
    rates = [row.tokens / row.step_s for row in rows[1:] if row.step_s][-NEWEST:]
    return median(rates) if len(rates) >= FEWEST else None

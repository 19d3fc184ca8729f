"""How fast iterations were, of which a prediction can say how far it is off."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from resihp_store.records import IterationRecord

SEEN = 64
"""Newest iterations that are looked at."""
NEWEST = 8
"""Those of an epoch whose median is its pace: a machine's load changes over minutes."""
FEWEST = 3


def settled_rate(rows: Sequence[IterationRecord]) -> float | None:
    """Median tokens/s of an epoch's newest iterations, without its first (which warms up, or was redone).

    None before there are enough of them.
    """
    rates = [row.tokens_per_s for row in rows[1:] if row.step_s > 0.0][-NEWEST:]
    return median(rates) if len(rates) >= FEWEST else None

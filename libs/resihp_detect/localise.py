"""Which device or link is at fault, from probes of all that come into question: equal work, comparable times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

K = TypeVar("K")


@dataclass(frozen=True)
class Located:
    """What the probes show. Empty tuples: nothing."""

    devices: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    p: float
    """Speed of the slowest device, or of the slowest link, relative to the others' median; 1 if nothing was found."""


def locate(
    compute_s: Mapping[int, float],
    link_s: Mapping[tuple[int, int], tuple[float, ...]],
    *,
    device_ratio: float = 1.15,
    link_ratio: float = 1.5,
) -> Located:
    """`compute_s`: rank -> seconds of the product; `link_s`: (sender, receiver) -> seconds as the ends saw them, of
    which the shortest is the transfer. Slow is what exceeds the median of all others by the ratio. A slow device
    explains slow transfers at its ends, so links are blamed only if no device is.

    >>> locate({0: 1.0, 1: 1.02, 2: 2.0, 3: 0.98}, {}).devices
    (2,)
    >>> locate({0: 1.0, 1: 1.0}, {(0, 1): (3.0, 2.9), (2, 3): (1.1, 1.0), (4, 5): (1.0, 1.0)}).links
    ((0, 1),)
    """
    devices = _outliers({rank: s for rank, s in compute_s.items() if np.isfinite(s) and s > 0}, device_ratio)
    if devices:
        return Located(tuple(sorted(devices)), (), 1.0 / max(devices.values()))
    times = {edge: min(seen) for edge, seen in link_s.items() if seen and min(seen) > 0}
    links = _outliers(times, link_ratio)
    return Located((), tuple(sorted(links)), 1.0 / max(links.values()) if links else 1.0)


def _outliers(seconds: Mapping[K, float], ratio: float) -> dict[K, float]:
    found = {}
    for key, own in seconds.items():
        others = [s for k, s in seconds.items() if k != key]
        if others and own > ratio * float(np.median(others)):
            found[key] = own / float(np.median(others))
    return found

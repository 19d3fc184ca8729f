"""What the search may use, and how long it may look."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Switches:
    """Ingredients of the search; each can be switched off for an ablation."""

    uneven_tp: bool = True
    """Shares by speed and any degree; otherwise powers of two, even (paper, Eq. 4)."""
    layers: bool = True
    """Layers per replica; otherwise every replica keeps the layers that it had."""
    counts: bool = True
    regroup: bool = True
    """Devices change groups inside a node, groups change places, replicas are given up."""
    polish: bool = True
    migration: bool = True
    """Single (stage, micro-batch) units are executed by other replicas."""
    schedule: bool = True
    """Other schedules, if the caller allows any."""
    rivals: bool = True
    """What the other policies would do is among the candidates."""


@dataclass(frozen=True)
class Effort:
    """How long the search may look."""

    swaps: int = 200
    compared: int = 6
    """Arrangements whose exact time is worked out, best estimate first."""
    polished: int = 4
    polish_rounds: int = 12
    descents: int = 2
    exchanged: int = 24
    """Shapes with exchanged units that are simulated at most; 0: none."""
    deltas: tuple[int, ...] = (0, 1, 2)
    """Of the paper's Algorithm 1; empty: quotas only."""
    rescheduled: int = 3
    """Shapes that are tried under other schedules."""

    @classmethod
    def for_devices(cls, num_devices: int) -> Effort:
        """Full effort up to 64 devices, less for more: what is left over is small there."""
        if num_devices <= 64:
            return cls(swaps=300)
        if num_devices <= 512:
            return cls(swaps=300, compared=5, polished=3, polish_rounds=8, exchanged=2, deltas=())
        return cls(
            swaps=150, compared=2, polished=1, polish_rounds=1, descents=1, exchanged=0, deltas=(), rescheduled=1
        )

    @classmethod
    def fast(cls, num_devices: int) -> Effort:
        """An answer within some tenths of a second: no exchange of units, little polish."""
        if num_devices > 512:
            return cls.for_devices(num_devices)
        return cls(swaps=60, compared=2, polished=1, polish_rounds=6, exchanged=0, deltas=(), rescheduled=1)

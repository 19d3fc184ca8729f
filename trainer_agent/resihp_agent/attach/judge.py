"""Which exits are faults, and whether a job hangs. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum

from resihp_agent.attach.rank import AttachedRank

_ASKED = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
"""Signals by which launchers and people end a process."""


class Guilt(IntEnum):
    """How likely an exit is the cause of the others."""

    STOPPED = 0
    """Somebody asked it to end."""
    RAISED = 1
    """An exception, or an abort: also what survivors do when a peer is gone."""
    DIED = 2
    """Killed, crashed, or gone without a word."""


@dataclass(frozen=True)
class Exit:
    """Of a rank that did not finish."""

    rank: int
    pid: int
    code: int | None
    """As in `subprocess`; None if the kernel did not say."""
    error: str
    """The exception it ended with, if it said so."""
    iteration: int
    noticed_s: float
    detect_s: float
    """Since its last sign of life."""

    @property
    def guilt(self) -> Guilt:
        if self.code in _ASKED:
            return Guilt.STOPPED
        if self.error or self.code == -signal.SIGABRT or (self.code is not None and self.code > 0):
            return Guilt.RAISED
        return Guilt.DIED

    @property
    def text(self) -> str:
        if self.error:
            return self.error
        if self.code is None:
            return "it vanished without a word"
        if self.code >= 0:
            return f"exit status {self.code}"
        known = {number.value: number.name for number in signal.Signals}
        return known.get(-self.code, f"signal {-self.code}")


def culprits(exits: Sequence[Exit]) -> tuple[Exit, ...]:
    """Of exits that were noticed about together, those that caused the others.

    A launcher stops the survivors of a death (torchrun by SIGTERM, a tenth of a second later), and survivors raise when
    a peer is gone: so who died comes first, then who raised first. Nobody, if all were asked to end.
    """
    worst = max((e.guilt for e in exits), default=Guilt.STOPPED)
    if worst is Guilt.STOPPED:
        return ()
    guilty = sorted((e for e in exits if e.guilt is worst), key=lambda e: e.noticed_s)
    return tuple(guilty) if worst is Guilt.DIED else (guilty[0],)


def hangs(ranks: Collection[AttachedRank], now_s: float) -> bool:
    """Nobody has made progress for longer than he may, and somebody lives."""
    alive = [r for r in ranks if r.stalled_at_s is None]
    return bool(alive) and all(
        r.bye is None and not r.is_protected(now_s) and r.quiet_s(now_s) > r.hang_s() for r in alive
    )

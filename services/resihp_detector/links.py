"""Broken links: each waits a little for a death that explains it. Pure; times are the detector's monotonic seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from resihp_messages import AnyEnvelope, event


@dataclass
class Suspicion:
    """Failed communication in one epoch of a job."""

    job: str
    epoch: int
    observation: AnyEnvelope
    """The first report."""
    grace_s: float
    since_s: float
    reports: list[event.LinkBroken] = field(default_factory=list)


@dataclass
class Links:
    """Open suspicions and the deaths that could explain them."""

    grace_s: float
    _open: dict[tuple[str, int], Suspicion] = field(default_factory=dict)
    _settled: dict[str, int] = field(default_factory=dict)
    """job -> newest epoch of which a broken link was explained or said."""
    _deaths: dict[str, tuple[int, float]] = field(default_factory=dict)
    """job -> (newest epoch, newest time) of a death."""

    def broken(self, observation: AnyEnvelope, report: event.LinkBroken, now_s: float) -> None:
        key = (observation.job, observation.epoch)
        if self._settled.get(observation.job, -1) >= observation.epoch or self._explained(*key, now_s):
            return
        suspicion = self._open.setdefault(key, Suspicion(*key, observation, self.grace_s, now_s))
        suspicion.reports.append(report)

    def died(self, job: str, epoch: int, now_s: float) -> None:
        """A device of the job is gone: links that broke in its epoch or about now need no other explanation.

        `now_s` is minus infinity for a death of the past whose time is not known.
        """
        before_epoch, before_s = self._deaths.get(job, (-1, -math.inf))
        self._deaths[job] = (max(before_epoch, epoch), max(before_s, now_s))
        for key in [k for k, s in self._open.items() if k[0] == job and self._explained(*k, s.since_s)]:
            del self._open[key]

    def settled(self, job: str, epoch: int) -> None:
        """The verdict about this epoch has been published."""
        self._settled[job] = max(epoch, self._settled.get(job, -1))
        for key in [k for k in self._open if k[0] == job and k[1] <= epoch]:
            del self._open[key]

    def job_over(self, job: str) -> None:
        for key in [k for k in self._open if k[0] == job]:
            del self._open[key]
        self._settled.pop(job, None)
        self._deaths.pop(job, None)

    def due(self, now_s: float) -> tuple[Suspicion, ...]:
        """Suspicions that no death has explained in time."""
        return tuple(s for s in self._open.values() if now_s - s.since_s >= s.grace_s)

    def _explained(self, job: str, epoch: int, at_s: float) -> bool:
        if job not in self._deaths:
            return False
        death_epoch, death_s = self._deaths[job]
        return death_epoch >= epoch or death_s >= at_s - self.grace_s

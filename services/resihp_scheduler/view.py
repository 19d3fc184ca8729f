"""Everything that a decision about what can wait depends on, read together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from resihp_scheduler import pricing
from resihp_scheduler.aim import SLOW, Aim, aim, open_slow
from resihp_scheduler.pace import Observed, observed
from resihp_scheduler.question import key_of
from resihp_scheduler.refine import refine
from resihp_scheduler.rules.limits import Limits
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import (
    ControlRecord,
    DecisionMode,
    DecisionOutcome,
    DecisionRecord,
    IncidentRecord,
    JobState,
    ReconfigurationStatus,
    decisions,
    queries,
)

REMEMBERED = 50
"""Decisions that are looked at."""
MAX_TRIES = 3
"""Changes for one question."""


@dataclass(frozen=True)
class View:
    """Everything that a decision about a job depends on, read together."""

    situation: Situation
    control: ControlRecord
    incidents: tuple[IncidentRecord, ...]
    """Oldest first: the open ones, and those of the record of devices that are to be trusted again."""
    made: tuple[DecisionRecord, ...]
    """Newest first."""
    aim: Aim
    is_refined: bool
    """Speeds were measured under a plan that was made for slow devices."""
    left_s: float
    """Until the job ends."""
    observed: Observed | None
    now: datetime

    @property
    def alive(self) -> frozenset[int]:
        """Whom to plan with: newcomers on probation and evicted devices are not among them."""
        return self.situation.alive - self.aim.held_back - self.control.evicted

    @property
    def limits(self) -> Limits:
        """The numbers by which this job's changes are decided."""
        return Limits.of(self.control.thresholds)

    @property
    def key(self) -> str:
        return key_of(self.alive, self.aim.speeds, self.control.thresholds)

    @property
    def last(self) -> DecisionRecord | None:
        """The newest one that was not overtaken."""
        return next((d for d in self.made if d.outcome is not DecisionOutcome.SUPERSEDED), None)

    @property
    def is_approved(self) -> bool:
        """An operator has said yes to the answer of this very question."""
        last = self.last
        return (
            last is not None
            and last.key == self.key
            and last.outcome is DecisionOutcome.APPROVED
            and last.reconfiguration_id is None
        )

    @property
    def came_to_nothing(self) -> bool:
        """The change that answered this question was refused, or a broken link overtook it; it is tried a few times."""
        void = (ReconfigurationStatus.REJECTED, ReconfigurationStatus.SUPERSEDED)
        lost = {c.id for c in self.situation.changes if c.status in void}
        tries = [d for d in self.made if d.key == self.key and d.reconfiguration_id in lost]
        return self.last is not None and self.last in tries and len(tries) < MAX_TRIES

    @property
    def may_act(self) -> bool:
        return self.is_approved or (self.control.mode is DecisionMode.ACT and not self.control.breaker)

    @property
    def incident(self) -> IncidentRecord | None:
        """The newest slowness, open or just over."""
        return next((i for i in reversed(self.incidents) if i.kind == SLOW), None)


async def view(term: Term, work: queries.Connection, job: str) -> View | None:
    """None if the job has nothing to decide now: not running, ending, or with a change under way."""
    situation = await load(work, job)
    if situation is None or situation.job.state is not JobState.RUNNING or situation.job.epoch == 0:
        return None
    if situation.open is not None or situation.finished or situation.spec.attached is not None:
        return None
    now, control = term.now(), await decisions.control(work, job)
    limits = Limits.of(control.thresholds)
    incidents = await _incidents(work, situation, now - timedelta(seconds=limits.probation.memory_s))
    made = await decisions.decisions(work, job, newest_first=True, limit=REMEMBERED)
    refined = refine(situation, incidents, made, pricing.calibration_of(control), term.meter)
    aimed = aim(situation, incidents, term.scores, now, refined.speeds, limits)
    again = [s for s in (aimed.again_in_s, refined.again_in_s) if s is not None]
    return View(
        situation=situation,
        control=control,
        incidents=incidents,
        made=made,
        aim=replace(aimed, again_in_s=min(again, default=None)),
        is_refined=bool(refined.speeds),
        left_s=await pricing.left_s(work, situation),
        observed=await observed(work, situation, control),
        now=now,
    )


async def _incidents(work: queries.Connection, situation: Situation, since: datetime) -> tuple[IncidentRecord, ...]:
    """However long a job's past: its open incidents, and only if somebody's record matters (a device has recovered or
    come back) those that ended since then."""
    found = await queries.incidents(work, job_name=situation.name, only_open=True)
    slow, planned = open_slow(found), situation.of_rank
    if any(planned[r].p < 1.0 or r in situation.newcomers for r in situation.alive - slow.keys()):
        ended = await queries.ended_incidents(work, situation.name, since=since)
        found = tuple(sorted((*ended, *found), key=lambda i: (i.opened_at, i.id)))
    return found

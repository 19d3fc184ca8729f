"""With which speeds a job is to be planned now: verdicts and scores, hysteresis, probation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from resihp_scheduler.rules.limits import Limits
from resihp_scheduler.rules.probation import Probation, standing
from resihp_scheduler.rules.speeds import MAX_ERROR, Estimate, differs, of_interval
from resihp_scheduler.situation import Situation
from resihp_store import IncidentRecord

SLOW = "device_slow"
"""Kind of the incidents of slow devices."""
SURE_AFTER_S = 5.0
"""A verdict whose speed is still uncertain after this time is acted on as it is."""
LOOK_AGAIN_S = 1.0


class Scores(Protocol):
    """The newest scores (`scores.ScoreBook`)."""

    def estimate(self, job: str, rank: int) -> Estimate | None: ...


@dataclass(frozen=True)
class Aim:
    """Speeds to plan with, and what is to be said about them."""

    speeds: Mapping[int, float]
    """Rank -> p of living ranks that are not to be planned as healthy."""
    again_in_s: float | None = None
    """When they may change by themselves (probation)."""
    notes: tuple[str, ...] = ()
    held_back: frozenset[int] = field(default_factory=frozenset)
    """Newcomers on probation: they stand by."""


def aim(
    situation: Situation,
    incidents: Sequence[IncidentRecord],
    scores: Scores,
    now: datetime,
    refined: Mapping[int, float] | None = None,
    limits: Limits | None = None,
) -> Aim:
    """`incidents`: the open ones of the job, and those that count in the record of its devices. `refined`: rank -> p
    of slow ranks, measured under a plan that was made for them."""
    slow, rules = open_slow(incidents), limits or Limits()
    speeds: dict[int, float] = {}
    again: list[float] = []
    notes: list[str] = []
    held_back = set()
    for rank in sorted(situation.alive):
        planned = situation.of_rank[rank].p
        if rank in slow:
            speed, wait_s = _slow(situation, slow[rank], rank, scores, now, rules)
            if refined and planned < 1.0 and differs(planned, refined.get(rank, planned), MAX_ERROR):
                speed = _below_one(refined[rank])
        elif planned < 1.0:
            speed, wait_s = _recovering(incidents, rank, now, notes, rules.probation)
        elif rank in situation.newcomers:
            speed, wait_s = 1.0, _returned(incidents, rank, now, notes, rules.probation)
            if wait_s is not None:
                held_back.add(rank)
        else:
            continue
        if speed != 1.0:
            speeds[rank] = speed
        if wait_s is not None:
            again.append(wait_s)
    return Aim(speeds, min(again, default=None), tuple(notes), frozenset(held_back))


def open_slow(incidents: Sequence[IncidentRecord]) -> dict[int, IncidentRecord]:
    """Rank -> its open incident of slowness."""
    return {rank: i for i in incidents if i.kind == SLOW and i.closed_at is None for rank in i.ranks}


def _slow(
    situation: Situation, incident: IncidentRecord, rank: int, scores: Scores, now: datetime, rules: Limits
) -> tuple[float, float | None]:
    """The measured speed once it is known; later only if it clearly differs from the planned one."""
    verdict, planned = incident.verdict, situation.of_rank[rank].p
    told = of_interval(float(verdict["p"]), verdict.get("p_low"), verdict.get("p_high"))
    newest = scores.estimate(situation.name, rank)
    estimate = newest if newest is not None and newest.is_known else told
    if planned < 1.0:
        is_other = newest is estimate and differs(planned, estimate.p, rules.hysteresis)
        return (estimate.p if is_other else planned), None
    age_s = (now - incident.opened_at).total_seconds()
    if not situation.spec.clock.virtual and age_s < rules.settled_s:
        return 1.0, rules.settled_s - age_s
    if estimate.is_known or age_s >= SURE_AFTER_S:
        return _below_one(estimate.p), None
    return 1.0, min(LOOK_AGAIN_S, SURE_AFTER_S - age_s)


def _below_one(p: float) -> float:
    """A slow device is planned as such, whatever a lucky score says."""
    return min(max(p, 0.01), 0.99)


def _recovering(
    incidents: Sequence[IncidentRecord], rank: int, now: datetime, notes: list[str], rule: Probation
) -> tuple[float, float | None]:
    """As far as its record allows, between the speed that it had and its healthy one."""
    ended = [i for i in incidents if rank in i.ranks and i.closed_at is not None]
    was_slow = [i for i in ended if i.kind == SLOW]
    if not was_slow:
        return 1.0, None
    slow = _below_one(float(was_slow[-1].verdict["p"]))
    trust = standing([_stamp(i) for i in ended], now.timestamp(), rule)
    if trust.note:
        notes.append(f"rank {rank} is {trust.note}")
    return trust.speed(slow, 1.0), trust.again_in_s


def _returned(
    incidents: Sequence[IncidentRecord], rank: int, now: datetime, notes: list[str], rule: Probation
) -> float | None:
    """Seconds until a rank that came back by itself may work again; None: now. Whom an operator asked for may at once:
    ranks that died alone come back in no other way."""
    lost = [i for i in incidents if rank in i.ranks and i.closed_at is not None and i.kind == "node_lost"]
    trust = standing([_stamp(i) for i in lost], now.timestamp(), rule)
    if trust.share >= 1.0:
        return None
    notes.append(f"rank {rank} is {trust.note}")
    return trust.again_in_s


def _stamp(incident: IncidentRecord) -> float:
    assert incident.closed_at is not None
    return incident.closed_at.timestamp()

"""Speeds of slow devices from the stage times of the new plan: once per slowness, after a plan was made for it.

The first speed comes from a few iterations of the old layout. The new one loads the device differently, so it is
measured again there, and if it was off by more than its error, the plan is weighed once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resihp_scheduler.aim import open_slow
from resihp_scheduler.calibration import FEWEST, Calibration, speeds_in
from resihp_scheduler.meter import Meter
from resihp_scheduler.situation import Situation
from resihp_store import DecisionRecord, IncidentRecord

LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class Refined:
    """Rank -> p as its new stage shows it; `again_in_s` while too few iterations are known."""

    speeds: Mapping[int, float] = field(default_factory=dict)
    again_in_s: float | None = None


def refine(
    situation: Situation,
    incidents: Sequence[IncidentRecord],
    made: Sequence[DecisionRecord],
    measured: Calibration | None,
    meter: Meter,
) -> Refined:
    """Nothing without measured constants, before a plan was changed for a slow device, or if it was done already."""
    slow, in_force = open_slow(incidents), situation.in_force
    if not slow or measured is None or in_force is None:
        return Refined()
    changed = {d.incident_id for d in made if d.action == "act"}
    done = {d.incident_id for d in made if d.question.get("refined")}
    ranks = [r for r, i in slow.items() if i.id in changed - done]
    if not ranks:
        return Refined()
    plan = situation.plan_in_force()
    rows = list(meter.complete(situation.name, in_force.epoch, plan.active).values())
    if len(rows) < FEWEST:
        return Refined(again_in_s=LOOK_AGAIN_S)
    found = speeds_in(situation.spec, plan, rows, measured)
    return Refined({r: found[r] for r in ranks if r in found})

"""Where each device is drawn: its place in the plan in force, or the last one that it had before it left the plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from resihp_plan.plan import ParallelPlan


def plan_map(plans: Sequence[ParallelPlan], ranks: Iterable[int]) -> dict[str, Any]:
    """The plan in force (the last of `plans`, which are ordered by epoch) as the page draws it.

    `ghosts`: rank -> [replica, stage, tp index] of devices that are not in it any more but once had a place that still
    exists, so that nothing moves on the map when a group shrinks. `pool`: devices without any such place.
    """
    plan = plans[-1]
    ghosts: dict[int, list[int]] = {}
    pool: list[int] = []
    for rank in sorted(set(ranks) - set(plan.active)):
        place = _last_place(plans, rank)
        if place is None:
            pool.append(rank)
        else:
            ghosts[rank] = list(place)
    return {
        "epoch": plan.epoch,
        "digest": plan.digest,
        "schedule": str(plan.schedule),
        "replicas": [
            {
                "num_micro_batches": replica.num_micro_batches,
                "stages": [
                    {"layers": [s.layer_start, s.layer_stop], "ranks": list(s.ranks), "weights": list(s.weights)}
                    for s in replica.stages
                ],
            }
            for replica in plan.replicas
        ],
        "migrations": len(plan.migrations),
        "standby": list(plan.standby),
        "ghosts": ghosts,
        "pool": pool,
    }


def _last_place(plans: Sequence[ParallelPlan], rank: int) -> tuple[int, int, int] | None:
    plan = plans[-1]
    for earlier in reversed(plans[:-1]):
        place = earlier.position(rank)
        if place is not None:
            replica, stage, _ = place
            if replica < len(plan.replicas) and stage < len(plan.replicas[replica].stages):
                return place
    return None

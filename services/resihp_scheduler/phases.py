"""From the acknowledgements of all nodes to phases, bytes and proof (docs/architecture.md, Time). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resihp_messages import ack
from resihp_messages.ids import StateSource


@dataclass(frozen=True)
class Outcome:
    """What a change cost and what was checked."""

    phases_s: Mapping[str, float]
    bytes_moved: int
    proof: Mapping[str, bool]
    lost_iterations: int
    state_source: StateSource


def outcome(
    applied: Sequence[ack.PlanApplied],
    resumed: Sequence[ack.IterationResumed],
    *,
    world: Sequence[int],
    digest: str,
    detect_s: float,
    plan_s: float,
) -> Outcome:
    """Maxima over ranks and nodes. `plan_s`: the scheduler's own measure, used if no agent has measured it.

    `total` is the outage: detection plus the slowest node's time from its notice to the commit of the redone iteration.
    """
    told = [a.plan_s for a in applied if a.plan_s is not None]
    since_notice_s = max((r.since_notice_s for r in resumed), default=0.0)
    ranks = sorted(rank for a in applied for rank in a.ranks)
    return Outcome(
        phases_s={
            "detect": detect_s,
            "plan": max(told, default=plan_s),
            "abort": _largest(s for a in applied for s in a.abort_s),
            "rebuild": _largest(s for a in applied for s in a.rebuild_s),
            "move": _largest(s for a in applied for s in a.move_s),
            "redo": _largest(s for r in resumed for s in r.redo_s),
            "total": detect_s + since_notice_s,
        },
        bytes_moved=sum(b for a in applied for b in a.bytes_received),
        proof={
            "layers_complete": ranks == sorted(world) and len({a.committed for a in applied}) == 1,
            "samples_once": bool(resumed) and all(r.samples_once == r.samples_expected for r in resumed),
            "digests_equal": all(a.digests_equal for a in applied),
            "plan_digest_equal": all(a.digest == digest for a in applied),
        },
        lost_iterations=max((a.lost_iterations for a in applied), default=0),
        state_source=next((a.state_source for a in applied if a.state_source != "live"), "live"),
    )


def _largest(values: Iterable[float]) -> float:
    return max(values, default=0.0)

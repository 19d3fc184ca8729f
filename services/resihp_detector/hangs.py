"""Jobs that hang: what every node says of its ranks, put together. Pure; times are the detector's monotonic seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import JsonValue

from resihp_detector.verdicts import Conclusion, derived_id
from resihp_messages import AnyEnvelope, event


@dataclass
class Hang:
    """Of one job, in one iteration."""

    observation: AnyEnvelope
    """The first report."""
    since_s: float
    reports: dict[str, event.WorkersHung] = field(default_factory=dict)
    """By node."""


@dataclass
class Hangs:
    """Reports wait a little for those of the other nodes; then each hang is concluded once."""

    grace_s: float
    _open: dict[tuple[str, int, int], Hang] = field(default_factory=dict)

    def reported(self, observation: AnyEnvelope, report: event.WorkersHung, now_s: float) -> None:
        key = (observation.job, observation.epoch, report.iteration)
        self._open.setdefault(key, Hang(observation, now_s)).reports[report.node] = report

    def job_over(self, job: str) -> None:
        for key in [k for k in self._open if k[0] == job]:
            del self._open[key]

    def due(self, now_s: float) -> tuple[Conclusion, ...]:
        """Hangs that every node has had time to report; they are forgotten here once `settled`."""
        return tuple(of_hang(h) for h in self._open.values() if now_s - h.since_s >= self.grace_s)

    def settled(self, conclusion: Conclusion) -> None:
        """It has been said."""
        for key in [k for k in self._open if _id(*k) == conclusion.message_id]:
            del self._open[key]


def _id(job: str, epoch: int, iteration: int) -> str:
    return derived_id("hang", job, epoch, iteration)


def missing(ranks: Iterable[event.StuckRank]) -> tuple[tuple[int, ...], str]:
    """Ranks that the others wait for, and why; nobody if that cannot be told.

    Frozen ranks first. Else, in a group whose members have begun different collectives, those behind: they did not
    come to the next one. Else those that wait for nobody while others do.
    """
    known = tuple(ranks)
    if frozen := tuple(r.rank for r in known if r.frozen):
        return frozen, "frozen"
    groups: defaultdict[str, list[event.StuckRank]] = defaultdict(list)
    for rank in known:
        if rank.op:
            groups[rank.group].append(rank)
    behind = [r.rank for members in groups.values() for r in members if r.seq < max(m.seq for m in members)]
    if behind:
        return tuple(sorted(behind)), "did not come to the collective that the others wait in"
    free = tuple(r.rank for r in known if not r.op or r.done)
    if free and len(free) < len(known):
        return free, "waits in no collective while the others do"
    return (), "all ranks wait in the same collective"


def of_hang(hang: Hang) -> Conclusion:
    """The verdict of one hang."""
    reports = [hang.reports[node] for node in sorted(hang.reports)]
    ranks = sorted((rank for report in reports for rank in report.ranks), key=lambda r: r.rank)
    who, why = missing(ranks)
    node = next((r.node for r in reports if any(s.rank in who for s in r.ranks)), reports[0].node)
    collectives: dict[str, JsonValue] = {str(r.rank): _collective(r) for r in ranks}
    evidence: dict[str, JsonValue] = {
        "reported_by": hang.observation.source,
        "observation": hang.observation.message_id,
        "iteration": reports[0].iteration,
        "quiet_s": min(r.quiet_s for r in reports),
        "why": why,
        "last_collective": collectives,
        "where": {str(r.rank): r.where for r in ranks},
        "phase": {str(r.rank): r.phase for r in ranks if r.phase},
    }
    named = ", ".join(map(str, who))
    advice = f"look at rank {named}: {why}" if who else "look at the network: nobody is behind"
    body = event.JobHung(
        evidence=evidence,
        verdict=event.Verdict(fault="job_hung", ranks=who, node=node, p=0.0, confidence=0.9 if who else 0.5),
        advice=advice,
    )
    job, epoch = hang.observation.job, hang.observation.epoch
    message_id = _id(job, epoch, reports[0].iteration)
    return Conclusion(body, job, epoch, message_id, message_id)


def _collective(rank: event.StuckRank) -> str:
    """For people."""
    if not rank.op:
        return "unknown"
    return f"{rank.op} #{rank.seq} of {rank.group} {rank.sizes}".rstrip() + (" (over)" if rank.done else "")

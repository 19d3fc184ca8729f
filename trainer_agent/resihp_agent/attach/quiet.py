"""Ranks that show no sign of life, and jobs that make no progress: said once each."""

from __future__ import annotations

import structlog

from resihp_agent import process
from resihp_agent.announcer import Announcer
from resihp_agent.attach import judge
from resihp_agent.attach.job import AttachedJob
from resihp_agent.attach.rank import AttachedRank
from resihp_agent.settings import AgentSettings
from resihp_messages import event

log = structlog.get_logger(__name__)


class Quiet:
    """Never waits. Nobody is fenced: the ranks belong to their launcher."""

    def __init__(self, settings: AgentSettings, announcer: Announcer) -> None:
        self._settings, self._announcer = settings, announcer

    def look(self, job: AttachedJob, now_s: float, since_s: float) -> None:
        """At every rank once. Silence counts from `since_s` on at the earliest."""
        for rank in list(job.ranks.values()):
            self._look_for_stall(job, rank, now_s, since_s)
        if job.ranks and not job.has_hung and judge.hangs(job.ranks.values(), now_s):
            self._hung(job, now_s)

    def _look_for_stall(self, job: AttachedJob, rank: AttachedRank, now_s: float, since_s: float) -> None:
        silent_s = min(now_s - rank.last_sign_s, now_s - since_s)
        if rank.stalled_at_s is not None or silent_s <= self._settings.attach_stall_s:
            return
        letter = process.state_letter(rank.pid)
        if letter in {"", "Z", "X"}:  # exiting: the pidfd will tell
            return
        if not process.is_stopped(letter) and silent_s <= self._settings.attach_silence_s:
            return  # one long call that keeps the interpreter to itself is no fault
        rank.stalled_at_s = rank.last_sign_s
        body = event.WorkerStalled(
            node=self._settings.node,
            rank=rank.rank,
            pid=rank.pid,
            iteration=rank.committed,
            stalled_s=silent_s,
            process_state=letter,
            fenced=False,
        )
        self._announcer.say(body, job=job.name, epoch=job.epoch)
        log.warning("rank_stalled", job=job.name, rank=rank.rank, pid=rank.pid, silent_s=silent_s, state=letter)

    def resumed(self, job: AttachedJob, rank: AttachedRank, now_s: float) -> None:
        """The rank shows life."""
        if rank.stalled_at_s is None:
            return
        silent_s, rank.stalled_at_s = now_s - rank.stalled_at_s, None
        body = event.WorkerResumed(node=self._settings.node, rank=rank.rank, pid=rank.pid, silent_s=silent_s)
        self._announcer.say(body, job=job.name, epoch=job.epoch)

    def _hung(self, job: AttachedJob, now_s: float) -> None:
        job.has_hung = True
        ranks = [job.ranks[rank] for rank in sorted(job.ranks)]
        body = event.WorkersHung(
            node=self._settings.node,
            iteration=max(r.committed for r in ranks),
            quiet_s=min(r.quiet_s(now_s) for r in ranks if r.stalled_at_s is None),
            ranks=tuple(r.stuck(now_s) for r in ranks),
        )
        self._announcer.say(body, job=job.name, epoch=job.epoch)
        log.warning("job_hangs", job=job.name, ranks=[r.rank for r in ranks])

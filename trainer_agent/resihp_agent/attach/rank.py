"""One rank of an attached job as its node's agent knows it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from resihp_messages.attach import AttachBeat, AttachBye, AttachHello
from resihp_messages.event import StuckRank
from resihp_messages.report import WorkerBeat

_START_S = 600.0
"""Imports, compilation, the first data: nobody is called hung before, however impatient the job."""


@dataclass(eq=False)
class AttachedRank:
    """From its hello to its exit. Times are monotonic seconds of this host."""

    hello: AttachHello
    pid: int
    pidfd: int | None
    last_sign_s: float
    beat: AttachBeat | None = None
    beat_at_s: float = 0.0
    bye: AttachBye | None = None
    stalled_at_s: float | None = None
    """Set while it shows no sign of life and that has been said."""
    committed: int = 0
    loss: float | None = None
    peak_rss_bytes: int = 0

    @property
    def rank(self) -> int:
        return self.hello.rank

    def heard(self, beat: AttachBeat, now_s: float) -> None:
        self.beat, self.beat_at_s, self.last_sign_s = beat, now_s, now_s

    def quiet_s(self, now_s: float) -> float:
        """Since its last progress."""
        if self.beat is None:
            return max(0.0, now_s - self.last_sign_s)
        return self.beat.quiet_s + max(0.0, now_s - self.beat_at_s)

    def is_protected(self, now_s: float) -> bool:
        return self.beat is not None and self.beat.protected_s > now_s - self.beat_at_s

    def hang_s(self) -> float:
        """How long it may be quiet. Until its first iteration it compiles, loads data, waits for others: longer."""
        return self.hello.hang_s if self.committed else max(5.0 * self.hello.hang_s, _START_S)

    def stuck(self, now_s: float) -> StuckRank:
        beat = self.beat
        last = beat.collective if beat is not None else None
        return StuckRank(
            rank=self.rank,
            quiet_s=self.quiet_s(now_s),
            frozen=self.stalled_at_s is not None,
            phase=beat.phase if beat is not None else "",
            where=beat.where if beat is not None else "",
            **(last.model_dump() if last is not None else {}),
        )

    def worker_beat(self, job: str, epoch: int, now_s: float) -> WorkerBeat:
        return WorkerBeat(
            job=job,
            rank=self.rank,
            pid=self.pid,
            state="training" if self.committed else "starting",
            epoch=epoch,
            iteration=self.committed,
            ops=self.beat.ops if self.beat is not None else 0,
            silent_s=max(0.0, now_s - self.last_sign_s),
        )

    def release(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

"""The newest beat of each node: what runs now, whatever the record says. After a restart it is back within a beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resihp_messages import AnyEnvelope
from resihp_messages.report import NodeBeat, WorkerBeat


@dataclass(frozen=True)
class SeenBeat:
    """A worker in the newest beat of its node."""

    node: str
    worker: WorkerBeat
    age_s: float


class NewestBeats:
    """Filled by a listener on `Kind.BEAT`. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._newest: dict[str, tuple[float, str, NodeBeat]] = {}

    async def hear(self, envelope: AnyEnvelope) -> None:
        """Keep the beat unless an older one of the same agent came late."""
        beat = envelope.body
        if not isinstance(beat, NodeBeat):
            return
        known = self._newest.get(beat.node)
        if known is not None and known[1] == envelope.incarnation and known[2].sequence > beat.sequence:
            return
        self._newest[beat.node] = (self._clock(), envelope.incarnation, beat)

    def workers(self, job: str) -> dict[int, SeenBeat]:
        """Each rank of the job that is in a newest beat."""
        now = self._clock()
        return {
            worker.rank: SeenBeat(beat.node, worker, now - heard)
            for heard, _, beat in self._newest.values()
            for worker in beat.workers
            if worker.job == job
        }

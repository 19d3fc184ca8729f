"""The newest speeds of slow devices, as the detector scores them: kept in memory, read when a decision is made.

Nothing durable depends on it: verdicts are events, and a new leader hears new scores with the next iteration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from resihp_messages.report import HealthScores
from resihp_scheduler.rules.speeds import HYSTERESIS, Estimate, Track, differs


class ScoreBook:
    """Tracks only ranks that are watched: those that are slow now."""

    def __init__(self) -> None:
        self._tracks: defaultdict[str, dict[int, Track]] = defaultdict(dict)
        self._planned: dict[str, Mapping[int, float]] = {}
        self._hysteresis: dict[str, float] = {}

    def watch(self, job: str, planned: Mapping[int, float], hysteresis: float = HYSTERESIS) -> None:
        """Follow these ranks; `planned`: the speeds with which they are planned (1: not yet)."""
        self._planned[job], self._hysteresis[job] = dict(planned), hysteresis
        tracks = self._tracks[job]
        for rank in set(tracks) - set(planned):
            del tracks[rank]
        for rank in planned:
            tracks.setdefault(rank, Track())

    def add(self, job: str, scores: HealthScores) -> bool:
        """Take in one iteration; True if a decision may depend on it."""
        planned, tracks, matters = self._planned.get(job), self._tracks.get(job), False
        if not planned or not tracks:
            return False
        for index, rank in enumerate(scores.ranks):
            if rank not in planned or scores.p[index] <= 0.0:
                continue
            known = bool(scores.p_low) and bool(scores.p_high)
            track = tracks[rank]
            track.add(scores.p[index], (scores.p_low[index], scores.p_high[index]) if known else None)
            estimate = track.estimate()
            if estimate is not None and estimate.is_known:
                matters |= differs(planned[rank], estimate.p, self._hysteresis[job])
        return matters

    def estimate(self, job: str, rank: int) -> Estimate | None:
        """None before the rank's first score."""
        track = self._tracks[job].get(rank)
        return track.estimate() if track is not None else None

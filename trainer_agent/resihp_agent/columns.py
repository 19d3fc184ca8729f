"""Collects the ranks' `IterationCommitted` frames into one columnar report per node, epoch and iteration. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from resihp_messages import link
from resihp_messages.report import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, IterationReport

_COLUMNS = tuple(
    name for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if name in link.IterationCommitted.model_fields
)
"""Those that a worker's frame carries under the same name."""


MOST_OPEN = 16
"""Iterations that may wait for a rank's frame. Ranks send from threads of their own: at ten milliseconds an iteration
one is a dozen frames behind another on a crowded host."""
Place = tuple[int, int]
"""(epoch, iteration)."""


@dataclass
class _Open:
    """An iteration whose report is not complete."""

    awaited: frozenset[int]
    reconfiguration_id: str
    frames: dict[int, link.IterationCommitted] = field(default_factory=dict)


@dataclass
class ReportColumns:
    """Of one job. Reports leave in the order of their iterations: one that is complete at once, an incomplete one when
    the epoch is over or too many newer ones have begun."""

    node: str
    num_late: int = 0
    """Frames that came after their iteration's report had left."""
    _sent: Place = (0, 0)
    """Of the newest report that has left."""
    _open: dict[Place, _Open] = field(default_factory=dict)

    def add(
        self, rank: int, frame: link.IterationCommitted, awaited: tuple[int, ...], reconfiguration_id: str = ""
    ) -> list[tuple[int, IterationReport]]:
        """Returns the reports that are ready now, as (epoch, report), oldest first.

        `awaited`: the ranks here that run the frame's epoch; `reconfiguration_id`: what led to that epoch.
        """
        place = (frame.epoch, frame.iteration)
        if place <= self._sent:
            self.num_late += 1
            return []
        self._open.setdefault(place, _Open(frozenset(awaited), reconfiguration_id)).frames[rank] = frame
        ready = []
        while self._open and self._is_due(first := min(self._open)):
            ready.append(self._leave(first))
        return ready

    def flush(self) -> list[tuple[int, IterationReport]]:
        """What has been collected, complete or not."""
        return [self._leave(place) for place in sorted(self._open)]

    def _is_due(self, first: Place) -> bool:
        held, newest = self._open[first], max(self._open)
        return held.awaited <= held.frames.keys() or newest[0] > first[0] or len(self._open) > MOST_OPEN

    def _leave(self, place: Place) -> tuple[int, IterationReport]:
        held, self._sent = self._open.pop(place), place
        frames = held.frames
        ranks = tuple(sorted(frames))
        rows = [frames[rank] for rank in ranks]
        losses = [row.loss for row in rows if row.loss is not None]
        report = IterationReport(
            node=self.node,
            iteration=place[1],
            ranks=ranks,
            **{name: tuple(getattr(row, name) for row in rows) for name in _COLUMNS},
            loss=losses[0] if losses else None,
            global_tokens=max(row.global_tokens for row in rows),
            samples_expected=max(row.samples_expected for row in rows),
            samples_once=min(row.samples_once for row in rows),
            virtual_clock=any(row.virtual_clock for row in rows),
            processor_time=any(row.processor_time for row in rows),
            reconfiguration_id=held.reconfiguration_id,
        )
        return place[0], report

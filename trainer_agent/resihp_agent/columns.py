"""Collects the ranks' `IterationCommitted` frames into one columnar report per node, epoch and iteration. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from resihp_messages import link
from resihp_messages.report import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, IterationReport

_COLUMNS = tuple(
    name for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if name in link.IterationCommitted.model_fields
)
"""Those that a worker's frame carries under the same name."""


@dataclass
class ReportColumns:
    """Of one job. A report is complete when all awaited ranks are in; the next iteration pushes out what there is."""

    node: str
    num_late: int = 0
    """Frames that came after their iteration's report had left."""
    _place: tuple[int, int] = (0, 0)
    """(epoch, iteration) that is being collected, or was sent last."""
    _reconfiguration_id: str = ""
    _frames: dict[int, link.IterationCommitted] = field(default_factory=dict)

    def add(
        self, rank: int, frame: link.IterationCommitted, awaited: tuple[int, ...], reconfiguration_id: str = ""
    ) -> list[tuple[int, IterationReport]]:
        """Returns the reports that are ready now, as (epoch, report): none, one, or an incomplete one and a new one.

        `awaited`: the ranks here that run the frame's epoch; `reconfiguration_id`: what led to that epoch.
        """
        place, ready = (frame.epoch, frame.iteration), []
        if place < self._place:
            self.num_late += 1
            return []
        if place > self._place:
            ready += self.flush()
            self._place, self._reconfiguration_id = place, reconfiguration_id
        elif not self._frames:  # this iteration's report has left already
            self.num_late += 1
            return []
        self._frames[rank] = frame
        if set(awaited) <= self._frames.keys():
            ready += self.flush()
        return ready

    def flush(self) -> list[tuple[int, IterationReport]]:
        """What has been collected, complete or not."""
        frames, self._frames = self._frames, {}
        if not frames:
            return []
        ranks = tuple(sorted(frames))
        rows = [frames[rank] for rank in ranks]
        losses = [row.loss for row in rows if row.loss is not None]
        report = IterationReport(
            node=self.node,
            iteration=self._place[1],
            ranks=ranks,
            **{name: tuple(getattr(row, name) for row in rows) for name in _COLUMNS},
            loss=losses[0] if losses else None,
            global_tokens=max(row.global_tokens for row in rows),
            samples_expected=max(row.samples_expected for row in rows),
            samples_once=min(row.samples_once for row in rows),
            virtual_clock=any(row.virtual_clock for row in rows),
            processor_time=any(row.processor_time for row in rows),
            reconfiguration_id=self._reconfiguration_id,
        )
        return [(self._place[0], report)]

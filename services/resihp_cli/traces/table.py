"""Rows -> a trace: rows of the same device and iteration (micro-batches) are summed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from resihp_cli.errors import CliError
from resihp_cli.traces.trace import Trace
from resihp_detect import Record

Work = tuple[float, float, float]


class Table:
    """Collects the rows of one file; `source` names it in errors."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._group_of: dict[str, str] = {}
        self._cells: dict[tuple[int, str], tuple[tuple[float, ...], Work]] = {}
        self._num_invalid = 0

    def iteration(self, row: Mapping[str, Any], column: str, line: int) -> int:
        """Raises `CliError` unless it is a whole number."""
        try:
            value = float(row[column])
        except (KeyError, TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value) or value != int(value):
            raise CliError(f"{self._source}: row {line}: {column} {row.get(column)!r} is not a whole number")
        return int(value)

    def name(self, row: Mapping[str, Any], column: str, line: int) -> str:
        """Raises `CliError` if it is empty."""
        value = str(row.get(column) if row.get(column) is not None else "").strip()
        if not value:
            raise CliError(f"{self._source}: row {line}: {column} is empty")
        return value

    def add(self, iteration: int, group: str, device: str, seconds: tuple[float, ...], work: Work) -> None:
        """Raises `CliError` if the device was in another group before."""
        if self._group_of.setdefault(device, group) != group:
            raise CliError(
                f"{self._source}: device {device} is in group {self._group_of[device]} and in group {group}; "
                "peers must do the same work throughout"
            )
        self._num_invalid += not all(math.isfinite(s) and s > 0 for s in seconds)
        before = self._cells.get((iteration, device))
        if before is not None:
            seconds = tuple(a + b for a, b in zip(before[0], seconds, strict=True))
            work = (before[1][0] + work[0], before[1][1] + work[1], before[1][2] + work[2])
        self._cells[iteration, device] = (seconds, work)

    def trace(self, layout: str) -> Trace:
        """Everything, in the order of iterations."""
        groups: dict[str, list[str]] = {}
        for device in sorted(self._group_of, key=_natural):
            groups.setdefault(self._group_of[device], []).append(device)
        ordered = sorted(self._cells, key=lambda key: key[0])
        records = [Record(i, device, *self._cells[i, device]) for i, device in ordered]
        directions = {len(r.seconds) for r in records}
        return Trace(
            layout,
            {g: groups[g] for g in sorted(groups, key=_natural)},
            directions.pop(),
            records,
            self._num_invalid,
        )


def _natural(name: str) -> list[tuple[int, int, str]]:
    """w2 before w10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]

"""Chooses the reader by the header of the file.

| header | layout |
|---|---|
| `iteration, device, seconds` or `forward_s` and `backward_s`; optional `group, micro_batches, tokens, sum_sq_len,
wait_s` | documented (CSV or JSONL) | | `iteration, w0, w1, ...` | iteration x worker, one column each |
| `step, dp_rank, stage, mb_id, chunk, fwd_ms, bwd_ms` | per micro-batch compute of a pipeline job |
| `step, dp_rank, stage, ..., fwd_s, bwd_s, ...` | per step and worker sums of a pipeline job |
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from resihp_cli.errors import CliError
from resihp_cli.traces.table import Table
from resihp_cli.traces.trace import Trace

Row = Mapping[str, Any]

COLUMNS = (
    "iteration, device, seconds (or forward_s and backward_s); "
    "optional group, micro_batches, tokens, sum_sq_len, wait_s"
)


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises `CliError` for a file that is absent, empty, or of no known layout."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: cannot be read as text: {error}") from None
    rows = _jsonl(path, text) if text.lstrip().startswith("{") else list(csv.DictReader(text.splitlines()))
    if not rows:
        raise CliError(f"{path}: holds no rows")
    header = {str(name).strip() for name in rows[0] if name is not None}
    table = Table(str(path))
    if {"step", "dp_rank", "stage", "fwd_ms", "bwd_ms"} <= header:
        _pipeline(table, rows, "fwd_ms", "bwd_ms", 1e-3)
        return table.trace("pipeline micro-batches")
    if {"step", "dp_rank", "stage", "fwd_s", "bwd_s"} <= header:
        _pipeline(table, rows, "fwd_s", "bwd_s", 1.0)
        return table.trace("pipeline steps")
    if "iteration" in header and ({"device", "seconds"} <= header or {"device", "forward_s", "backward_s"} <= header):
        _documented(table, rows, two="seconds" not in header)
        return table.trace("documented columns")
    if (
        "iteration" in header
        and len(header) >= 2
        and all(n[1:].isdigit() and n[0].isalpha() for n in header - {"iteration"})
    ):
        _wide(table, rows)
        return table.trace("iteration x worker")
    raise CliError(f"{path}: unknown columns {', '.join(sorted(header))}; expected {COLUMNS}")


def _jsonl(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise CliError(f"{path}: line {number} is not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise CliError(f"{path}: line {number} is not a JSON object")
        rows.append(row)
    return rows


def _pipeline(table: Table, rows: Iterable[Row], forward: str, backward: str, unit_s: float) -> None:
    for number, row in enumerate(rows, 2):
        stage = table.name(row, "stage", number)
        seconds = (_number(row.get(forward)) * unit_s, _number(row.get(backward)) * unit_s)
        device = f"dp{table.name(row, 'dp_rank', number)}.stage{stage}"
        table.add(table.iteration(row, "step", number), f"stage {stage}", device, seconds, (1.0, 0.0, 0.0))


def _wide(table: Table, rows: Iterable[Row]) -> None:
    for number, row in enumerate(rows, 2):
        iteration = table.iteration(row, "iteration", number)
        for device, value in row.items():
            if device is not None and device != "iteration":
                table.add(iteration, "job", str(device), (_number(value),), (1.0, 0.0, 0.0))


def _documented(table: Table, rows: Iterable[Row], *, two: bool) -> None:
    """`wait_s` is the part of the seconds that was spent waiting for others: it is taken away."""
    for number, row in enumerate(rows, 2):
        wait = _number(row["wait_s"]) if row.get("wait_s") not in (None, "") else 0.0
        if two:
            forward, backward = _number(row.get("forward_s")), _number(row.get("backward_s"))
            whole = forward + backward
            busy = (whole - wait) / whole if whole > 0 else math.nan
            seconds: tuple[float, ...] = (forward * busy, backward * busy)
        else:
            seconds = (_number(row.get("seconds")) - wait,)
        work = tuple(_number(row[n]) if row.get(n) not in (None, "") else d for n, d in _WORK)
        group = str(row.get("group") or "all").strip()
        device = table.name(row, "device", number)
        table.add(table.iteration(row, "iteration", number), group, device, seconds, (work[0], work[1], work[2]))


_WORK = (("micro_batches", 1.0), ("tokens", 0.0), ("sum_sq_len", 0.0))


def _number(value: Any) -> float:
    """NaN for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan

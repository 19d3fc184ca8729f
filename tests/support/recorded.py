"""Streams of real jobs, kept as JSONL: what the stream is, then its plans and reports in their order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from resihp_detector.layouts import Epoch
from resihp_messages.report import IterationReport
from resihp_plan import ModelSpec, ParallelPlan

FOLDER = Path(__file__).parents[1] / "recorded"


def recorded(name: str) -> Iterator[tuple[Epoch, IterationReport]]:
    """Every report with the epoch that it belongs to."""
    epochs: dict[str, Epoch] = {}
    model: ModelSpec | None = None
    for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        if "plan" in row:
            model = ModelSpec(**row["model"]) if "model" in row else model
            assert model is not None  # the first plan comes with it
            plan = ParallelPlan.from_dict(row["plan"])
            epochs[row["id"]] = Epoch("demo", row["epoch"], row["id"], plan, model, is_first=not epochs)
            continue
        yield epochs[row["id"]], _report(row)


def _report(row: dict[str, object]) -> IterationReport:
    reconfiguration_id = row.pop("id")
    ranks = row["ranks"]
    assert isinstance(ranks, list)
    rest = {"rss_bytes": (0,) * len(ranks), "loss": None, "global_tokens": 0, "samples_expected": 0, "samples_once": 0}
    return IterationReport.model_validate({**row, **rest, "reconfiguration_id": reconfiguration_id})

"""Results of single cases, kept in a file: a long benchmark may be stopped and run again until it is complete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class OutOfTime(Exception):
    """The budget is used up; what is known is in the file."""


class Cells:
    """Key -> JSON value, one line each. Whoever changes the planner starts with a fresh file."""

    def __init__(self, path: Path, budget_s: float) -> None:
        self.path, self.deadline = path, time.monotonic() + budget_s
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.known: dict[str, Any] = dict(json.loads(line) for line in lines)

    def get(self, key: str, work: Callable[[], Any]) -> Any:
        """The known value, or that of `work`. Raises `OutOfTime` instead of starting after the budget's end."""
        if key not in self.known:
            if time.monotonic() > self.deadline:
                raise OutOfTime(key)
            value = work()
            with self.path.open("a") as out:
                out.write(json.dumps([key, value]) + "\n")
            self.known[key] = json.loads(json.dumps(value))
        return self.known[key]

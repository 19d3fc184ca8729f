"""A real 4-rank job that both watch: `resihp run -- torchrun ... rank.py`, and what each named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CULPRIT = 2
HEALTHY, AFTER, EVERY = 120, 40, 10
RANKS = 4
OURS = {"ResiHP: suspected": "DeviceSuspected", "ResiHP: called slow": "DeviceSlow"}
START_S = 120.0


@dataclass(frozen=True)
class Naming:
    """One line of a watcher: ranks named, by iteration."""

    delay: int | None
    """Iterations from the onset on until the culprit was named."""
    false: int
    """Namings of other ranks, and of that one while it was healthy; one that lasts counts once."""


def naming(found: list[tuple[int, set[int]]]) -> Naming:
    """`found`: after which iterations who was named.

    >>> naming([(110, {1}), (120, {1}), (130, {2})])
    Naming(delay=10, false=1)
    """
    delay, false, before = None, 0, set[int]()
    for iteration, ranks in found:
        right = {CULPRIT} if iteration > HEALTHY else set()
        if ranks & right and delay is None:
            delay = iteration - HEALTHY
        false += len(ranks - before - right)
        before = ranks
    return Naming(delay, false)


@contextmanager
def system(home: Path) -> Iterator[None]:
    """`resihp up` for all jobs. Raises TimeoutError if it does not come up."""
    with (home / "up.log").open("w") as log:
        command = [sys.executable, "-m", "resihp_cli", "up"]
        process = subprocess.Popen(command, env=_environment(home), stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline_s = time.monotonic() + START_S
            while "gateway  http" not in (home / "up.log").read_text():
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise TimeoutError((home / "up.log").read_text())
                time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "RESIHP_HOME": str(home), "OMP_NUM_THREADS": "1"}


def _resihp(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "resihp_cli", *arguments]
    done = subprocess.run(command, env=_environment(home), stdout=subprocess.PIPE, text=True, check=True, timeout=240)
    return done.stdout


def run(home: Path, name: str, package: str, factor: float, spread: float) -> dict[str, Any]:
    """Of one job: `named`, watcher -> iterations and ranks, and what reports took. Raises CalledProcessError."""
    job = [package, str(factor), str(spread), str(HEALTHY), str(AFTER if factor > 1 else 0), str(EVERY)]
    printed = _resihp(
        home, "run", "--name", name, "--",
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
        "-m", "benchmarks.attach_stragglers.rank", *job,
    )  # fmt: skip
    told = json.loads(next(line for line in printed.splitlines() if line.startswith('{"reports"')))
    events = [json.loads(line) for line in _resihp(home, "events", "--job", name, "--json").splitlines()]
    named: dict[str, list[tuple[int, list[int]]]] = {}
    for watcher, event in OURS.items():
        bodies = [e["body"] for e in events if e["name"] == event]
        named[watcher] = [(b["evidence"]["iteration"], b["verdict"]["ranks"]) for b in bodies]
    for section in ("forward", "backward"):
        for kind in ("relative", "individual"):
            key = f"{section}, {kind}"
            named[f"sections: {key}"] = [(iteration, found.get(key, [])) for iteration, found in told["reports"]]
    return {"named": named, "wall_s": told["wall_s"], "processor_s": told["processor_s"]}

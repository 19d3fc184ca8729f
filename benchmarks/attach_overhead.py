"""What the hooks of an attached job cost: steps of one DDP process with and without them, in turns.

    python -m benchmarks.attach_overhead [--rounds 2000] [--seconds 240]

The same process takes both kinds of steps, so that what else the machine does meets both alike. In the agent's place,
this process reads what the client sends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.attach_overhead_steps import KINDS
from benchmarks.report import machine, table, write
from resihp_attach import place, stuck

BOUND = 0.005
RESAMPLES = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def _median(values: Iterable[float]) -> tuple[float, float, float]:
    """And its interval."""
    known = list(values)
    return (statistics.median(known), *interval(known))


def row(clock: str, rounds: Sequence[tuple[float, float, float]], kind: int) -> list[str]:
    """Of one clock and kind of step (`attach_overhead_steps.KINDS`), against the plain steps of the same rounds."""
    off, other = statistics.median(r[0] for r in rounds), statistics.median(r[kind] for r in rounds)
    more = [r[kind] / r[0] - 1 for r in rounds]
    low, high = interval(more)
    cells = [f"{1e3 * off:.2f}", f"{1e3 * other:.2f}", f"{100 * statistics.median(more):+.2f} %"]
    verdict = "below" if high < BOUND else "above" if low > BOUND else "no verdict on"
    name = f"{clock}, {'hooks' if KINDS[kind] == 'on' else 'control: no hooks either'}"
    return [name, *cells, f"{100 * low:+.2f} to {100 * high:+.2f} %", f"{verdict} {100 * BOUND:g} %"]


def main() -> int:
    """Write benchmarks/results/attach_overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=240.0)
    given = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "a.sock"
        server.bind(str(path))
        server.listen()
        threading.Thread(target=_swallow, args=(server,), daemon=True).start()
        found = _run(path, given.rounds, given.seconds)
    off_s = statistics.median(r[0] for r in found["processor"])
    alone_us, low_us, high_us = (1e6 * s for s in _median(on - off for off, _, on in found["tiny"]))
    control_us = 1e6 * statistics.median(again - off for off, again, _ in found["tiny"])
    header = ("clock, second step", "plain, ms", "second, ms", "median of ratios", "95 % interval", "bound")
    rows = [row(clock, found[clock], kind) for clock in ("wall", "processor") for kind in (2, 1)]
    body = (
        "One process takes rounds of three steps in random order: plain, plain again (the control), with hooks. Shares "
        f"are medians of the ratios within {len(found['wall'])} rounds, intervals by bootstrap. The control tells what "
        "the machine's noise alone would be taken for. Processor: of the training thread.\n\n"
        f"{table(header, rows)}\n\n"
        f"The hooks alone: around next to no work, with caches emptied before each step ({len(found['tiny'])} rounds, "
        f"processor time), a step of two micro-batches takes {alone_us:.0f} us more (95 % interval {low_us:.0f} to "
        f"{high_us:.0f}; control {control_us:+.0f}). That is {1e-4 * alone_us / off_s:.2f} % of the step above, and "
        f"{100 * BOUND:g} % of a step of {alone_us / BOUND / 1e3:.0f} ms. "
        f"The client's own thread took {100 * found['client_share']:.2f} % of one core besides. "
        f"{found['iterations']} iterations were told, {found['dropped']} frames dropped."
    )
    facts = {**facts, "job": "one DDP process, 12 layers of width 128, 147 parameters, two micro-batches of 256 tokens"}
    command = f"python -m benchmarks.attach_overhead --rounds {given.rounds} --seconds {given.seconds:g}"
    print(write("attach_overhead", "What watching an attached job costs", command, facts, body).read_text())
    return 0


def _swallow(server: socket.socket) -> None:
    line, _ = server.accept()
    with line:
        while line.recv(1 << 16):
            pass


def _run(path: Path, rounds: int, limit_s: float) -> dict[str, Any]:
    env = {
        **os.environ, "OMP_NUM_THREADS": "1", place.SOCKET: str(path), place.JOB: "overhead", stuck.BUFFER: "256"
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.attach_overhead_steps", str(rounds), str(limit_s)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())

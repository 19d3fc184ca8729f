"""What the hooks of an attached job cost: steps of one DDP process with and without them, in turns.

    python -m benchmarks.attach_overhead [--pairs 400]

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import machine, table, write
from resihp_attach import place, stuck

BOUND = 0.005
RESAMPLES = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def row(name: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Of one clock: medians, and what a step with hooks takes more, as a share of one without."""
    off, on = (statistics.median(side) for side in zip(*pairs, strict=True))
    more = [b - a for a, b in pairs]
    low, high = (x / off for x in interval(more))
    share = statistics.median(more) / off
    verdict = "below" if high < BOUND else "above" if low > BOUND else "no verdict on"
    cells = [f"{1e3 * off:.2f}", f"{1e3 * on:.2f}", f"{1e3 * statistics.median(more):.3f}", f"{100 * share:.2f} %"]
    return [name, *cells, f"{100 * low:.2f} to {100 * high:.2f} %", f"{verdict} {100 * BOUND:g} %"]


def main() -> int:
    """Write benchmarks/results/attach_overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    pairs = parser.parse_args().pairs
    facts = machine()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "a.sock"
        server.bind(str(path))
        server.listen()
        threading.Thread(target=_swallow, args=(server,), daemon=True).start()
        found = _run(path, pairs)
    alone_us = 1e6 * statistics.median(on - off for off, on in found["tiny"])
    header = ("clock", "off, ms", "on, ms", "difference, ms", "share", "95 % interval", f"bound {100 * BOUND:g} %")
    body = (
        "One process takes steps with and without the hooks in turns (order alternating); shares are medians of paired "
        f"differences over {pairs} pairs, intervals by bootstrap. The training thread's processor time is the one that "
        "other load disturbs least.\n\n"
        f"{table(header, [row('wall', found['wall']), row('processor', found['processor'])])}\n\n"
        f"The hooks alone, around next to no work ({len(found['tiny'])} pairs, processor time): {alone_us:.0f} us per "
        f"step of two micro-batches, which is {100 * BOUND:g} % of a step of {alone_us / BOUND / 1e3:.0f} ms. "
        f"The client's own thread took {100 * found['client_share']:.2f} % of one core besides. "
        f"{found['iterations']} iterations were told, {found['dropped']} frames dropped."
    )
    facts = {**facts, "job": "one DDP process, 12 layers of width 128, 147 parameters, two micro-batches of 256 tokens"}
    command = f"python -m benchmarks.attach_overhead --pairs {pairs}"
    print(write("attach_overhead", "What watching an attached job costs", command, facts, body).read_text())
    return 0


def _swallow(server: socket.socket) -> None:
    line, _ = server.accept()
    with line:
        while line.recv(1 << 16):
            pass


def _run(path: Path, pairs: int) -> dict[str, Any]:
    env = {
        **os.environ, "OMP_NUM_THREADS": "1", place.SOCKET: str(path), place.JOB: "overhead", stuck.BUFFER: "256"
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.attach_overhead_steps", str(pairs)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())

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

from benchmarks.attach_overhead_steps import DEVICE_S, KINDS
from benchmarks.report import machine, table, write
from resihp_attach import place, stuck

BOUND = 0.005
RESAMPLES = 2000
TRIMMED = 0.2
"""Of the values on either side: steps that met another program say nothing about hooks."""
Round = Sequence[float]
"""Seconds of each of `KINDS`."""


def middle(values: Iterable[float]) -> float:
    """Mean without the outer `TRIMMED` on either side."""
    known = sorted(values)
    cut = int(TRIMMED * len(known))
    return statistics.fmean(known[cut : len(known) - cut])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the `middle`, by bootstrap."""
    draw = random.Random(0)
    means = sorted(middle(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[RESAMPLES // 40], means[-RESAMPLES // 40]


def hooks_cost(rounds: Iterable[Round]) -> list[float]:
    """Of each round: the two steps with hooks over the two without, less one."""
    return [(on + on_again) / (off + off_again) - 1 for off, off_again, on, on_again in rounds]


def control(rounds: Iterable[Round]) -> list[float]:
    """The same steps, one of each kind over the other two: what noise alone would be taken for."""
    return [(off_again + on_again) / (off + on) - 1 for off, off_again, on, on_again in rounds]


def row(name: str, values: Sequence[float]) -> list[str]:
    """Of relative differences."""
    low, high = interval(values)
    verdict = "below" if high < BOUND else "above" if low > BOUND else "no verdict on"
    cells = [f"{100 * middle(values):+.2f} %", f"{100 * low:+.2f} to {100 * high:+.2f} %"]
    return [name, *cells, f"{verdict} {100 * BOUND:g} %"]


def main() -> int:
    """Write benchmarks/results/attach_overhead.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--raw", type=Path, help="file that keeps the seconds of every step")
    given = parser.parse_args()
    facts = machine()
    found = beside_a_listener("benchmarks.attach_overhead_steps", str(given.rounds), str(given.seconds))
    if given.raw:
        given.raw.write_text(json.dumps(found))
    facts = {**facts, "job": "one DDP process, 2 layers of width 128, two micro-batches of 16 tokens"}
    command = f"python -m benchmarks.attach_overhead --rounds {given.rounds} --seconds {given.seconds:g}"
    title = "What watching an attached job costs"
    print(write("attach_overhead", title, command, facts, report(found)).read_text())
    return 0


def report(found: dict[str, Any]) -> str:
    """Of what `attach_overhead_steps` printed."""
    assert len(KINDS) == len(found["wall"][0])
    step_s, busy_s = (statistics.median(r[0] for r in found[clock]) for clock in ("wall", "processor"))
    rows = []
    for clock in ("wall", "processor"):
        # both clocks as shares of the whole step
        values = [[x + step_s - (step_s if clock == "wall" else busy_s) for x in r] for r in found[clock]]
        rows += [row(f"{clock}, watched", hooks_cost(values)), row(f"{clock}, control", control(values))]
    alone = [(on + on_again - off - off_again) / 2 for off, off_again, on, on_again in found["tiny"]]
    placebo = [(off_again + on_again - off - on) / 2 for off, off_again, on, on_again in found["tiny"]]
    alone_us, low_us, high_us = (1e6 * s for s in (middle(alone), *interval(alone)))
    return (
        "One process takes rounds of four steps, two watched and two not, in random order, on the same tensors: "
        f"{len(found['wall'])} rounds, {1e3 * step_s:.0f} ms a step (median). The host computes for "
        f"{1e3 * busy_s:.0f} ms of them; for the rest it waits, asleep, **in the place of a device** (twice "
        f"{1e3 * DEVICE_S:.0f} ms). Watched: all hooks, and the client's thread, which works at its pace in such steps "
        "only. Of each round the ratio of the two watched steps to the two others; of these the mean of the "
        f"middle {100 - 200 * TRIMMED:.0f} %, interval by bootstrap. Control: the same steps, one of each kind against "
        "the other two, so what it shows is this machine's noise. Processor: of the training thread, as a share of the "
        "whole step.\n\n"
        f"{table(('clock', 'more', '95 % interval', 'verdict'), rows)}\n\n"
        f"The hooks alone: around next to no work, with caches emptied before each step ({len(alone)} rounds, "
        f"processor time), a step of two micro-batches takes {alone_us:.0f} us more (95 % interval {low_us:.0f} to "
        f"{high_us:.0f}; control {1e6 * middle(placebo):+.0f}): {1e-4 * alone_us / step_s:.2f} % of the step above, "
        f"{100 * BOUND:g} % of a step of {alone_us / BOUND / 1e3:.0f} ms. The client's thread takes "
        f"{100 * found['client_share']:.2f} % of one core. "
        f"{found['iterations']} iterations were told, {found['dropped']} frames dropped."
    )


def beside_a_listener(module: str, *arguments: str) -> Any:
    """The JSON that a Python module prints, run as an attached process; this one reads what its client sends."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "a.sock"
        server.bind(str(path))
        server.listen()
        threading.Thread(target=_swallow, args=(server,), daemon=True).start()
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", place.SOCKET: str(path), place.JOB: "overhead", stuck.BUFFER: "256"
        }  # fmt: skip
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _swallow(server: socket.socket) -> None:
    line, _ = server.accept()
    with line:
        while line.recv(1 << 16):
            pass


if __name__ == "__main__":
    sys.exit(main())

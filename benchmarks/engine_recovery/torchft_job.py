"""Loses one of several torchft replicas a number of times; runs in an environment of its own that has torchft.

    python -m benchmarks.engine_recovery.torchft_job --replicas 2 --runs 3 [--heartbeat-ms 200 --timeout 5]

Every run is a lighthouse and fresh replicas. One replica is killed (SIGKILL) in the middle of an iteration. Prints one
JSON line per run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from statistics import median

from torchft.coordination import LighthouseServer

BEFORE, AFTER = 6, 3
"""Committed steps before the death, and of the survivors after it."""
LIMIT_S = 100.0
JOIN_MS = 10_000
"""How long a quorum waits for a replica whose heartbeat is there. By default 100 ms, within which three replicas on two
cores do not come to the end of an iteration: they went in and out. A dead one has no heartbeat, so it is not waited
for any longer."""


@dataclass(frozen=True)
class Run:
    """Seconds. `total_s`: from the signal to the next commit of the last survivor."""

    version: str
    replicas: int
    total_s: float
    iteration_s: float


class Replicas:
    """The processes of one job and their commits: replica -> [(step, seconds, world)]."""

    def __init__(self, count: int, lighthouse: str, timeout: float | None) -> None:
        extra = [] if timeout is None else ["--timeout", str(timeout)]
        self.commits: dict[int, list[tuple[int, float, int]]] = {r: [] for r in range(count)}
        self.rest = dict.fromkeys(range(count), b"")
        self.selector = selectors.DefaultSelector()
        self.processes = []
        for r in range(count):
            command = [sys.executable, "-m", "benchmarks.engine_recovery.torchft_replica", "--lighthouse", lighthouse]
            command += ["--replica", str(r), "--replicas", str(count), *extra]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert process.stdout is not None
            self.selector.register(process.stdout, selectors.EVENT_READ, r)
            self.processes.append(process)

    def wait(self, ranks: list[int], is_reached: object, limit_s: float = LIMIT_S) -> None:
        """Read until `is_reached(commits)` holds for each of `ranks`. Raises TimeoutError."""
        assert callable(is_reached)
        deadline = time.monotonic() + limit_s
        while not all(is_reached(self.commits[r]) for r in ranks):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {limit_s} s; commits {[len(c) for c in self.commits.values()]}")
            for key, _ in self.selector.select(0.05):
                self._read(key.fd, key.data)

    def _read(self, fd: int, replica: int) -> None:
        """What has arrived; lines that are not commits are the library's own."""
        arrived = os.read(fd, 65536)
        if not arrived:  # the replica is gone
            self.selector.unregister(fd)
        *lines, self.rest[replica] = (self.rest[replica] + arrived).split(b"\n")
        for line in lines:
            fields = line.split()
            if len(fields) == 3 and fields[0].isdigit():
                self.commits[replica].append((int(fields[0]), float(fields[1]), int(fields[2])))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def lose(count: int, heartbeat_ms: int | None, timeout: float | None) -> Run:
    """One job, one death."""
    tuned = {} if heartbeat_ms is None else {"heartbeat_timeout_ms": heartbeat_ms, "quorum_tick_ms": 10}
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN_MS, **tuned)
    replicas = Replicas(count, lighthouse.address(), timeout)
    try:
        everybody = list(range(count))
        replicas.wait(everybody, lambda seen: sum(world == count for _, _, world in seen) >= BEFORE)
        whole = [at for _, at, world in replicas.commits[0] if world == count]
        iteration_s = median(b - a for a, b in itertools.pairwise(whole))
        time.sleep(iteration_s / 2)  # into the middle of the next iteration
        victim, struck_s = count - 1, time.monotonic()
        replicas.processes[victim].send_signal(signal.SIGKILL)
        survivors = everybody[:-1]
        replicas.wait(survivors, lambda seen: sum(at > struck_s for _, at, _ in seen) >= AFTER)
        firsts = [
            next(at for _, at, world in replicas.commits[r] if at > struck_s and world < count) for r in survivors
        ]
        return Run(metadata.version("torchft"), count, max(firsts) - struck_s, iteration_s)
    finally:
        replicas.close()
        lighthouse.shutdown()


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--heartbeat-ms", type=int, help="of the lighthouse; default: torchft's")
    parser.add_argument("--timeout", type=float, help="seconds, of collectives; default: torchft's")
    options = parser.parse_args()
    for _ in range(options.runs):
        print(json.dumps(asdict(lose(options.replicas, options.heartbeat_ms, options.timeout))), flush=True)


if __name__ == "__main__":
    main()

"""Loses one of several torchft replicas; runs in an environment of its own that has torchft. A JSON line per run."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata

from torchft.coordination import LighthouseServer

from benchmarks.attach_survival.commits import lose

JOIN_MS = 10_000
"""How long a quorum waits for a replica whose heartbeat is there (default: 100 ms, within which four replicas on two
cores do not come to the end of a step: they go in and out). A dead one has no heartbeat and is not waited for."""


def run(ranks: int, heartbeat_ms: int | None, timeout: float | None) -> dict[str, object]:
    """One job, one death."""
    tuned = {} if heartbeat_ms is None else {"heartbeat_timeout_ms": heartbeat_ms, "quorum_tick_ms": 10}
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN_MS, **tuned)
    bounds = [] if timeout is None else ["--timeout", str(timeout)]
    command = [sys.executable, "-m", "benchmarks.attach_survival.torchft_rank", "--lighthouse", lighthouse.address()]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank), *bounds], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for rank in range(ranks)
    ]
    try:
        found = lose(processes, ranks, lambda: processes[-1].pid)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        lighthouse.shutdown()
    return {**asdict(found), "version": metadata.version("torchft")}


def main() -> None:
    """Print one line per run; a run that does not come about says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--heartbeat-ms", type=int, help="of the lighthouse; default: torchft's")
    parser.add_argument("--timeout", type=float, help="seconds, of collectives; default: torchft's")
    options = parser.parse_args()
    for _ in range(options.runs):
        try:
            print(json.dumps(run(options.ranks, options.heartbeat_ms, options.timeout)), flush=True)
        except TimeoutError as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()

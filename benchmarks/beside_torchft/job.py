"""One torchft job that loses its last replica; runs in an environment of its own that has torchft.

    python -m benchmarks.beside_torchft.job --replicas 3 [--heartbeat-ms 300 --timeout 5] REPLICA_MODULE [OPTION...]

A lighthouse and fresh replicas, one of which is killed (SIGKILL) in the middle of an iteration. Prints one JSON line:
seconds, or what torchft said when it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from torchft.coordination import LighthouseServer

from benchmarks.beside_torchft.commits import RankEnded, lose

JOIN_MS = 10_000
"""As torchft's manual has it: how long a quorum waits for a replica whose heartbeat is there. (The default of the class
is 100 ms, of its command line 60 s.) A dead one has no heartbeat and is not waited for."""
TUNED_TICK_MS = 10


def run(given: argparse.Namespace, folder: Path) -> dict[str, object]:
    """One job, one death."""
    tuned = {}
    if given.heartbeat_ms is not None:
        tuned = {"heartbeat_timeout_ms": given.heartbeat_ms, "quorum_tick_ms": TUNED_TICK_MS}
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=JOIN_MS, **tuned)
    bound = [] if given.timeout is None else ["--timeout", str(given.timeout)]
    command = [sys.executable, "-m", *given.command, "--lighthouse", lighthouse.address(), *bound]
    logs = [folder / f"{rank}.log" for rank in range(given.replicas)]
    with contextlib.ExitStack() as stack:
        stack.callback(lighthouse.shutdown)
        processes = []
        for rank, log in enumerate(logs):
            said = stack.enter_context(log.open("wb"))
            command_of = [*command, "--rank", str(rank)]
            processes.append(subprocess.Popen(command_of, stdout=subprocess.PIPE, stderr=said))
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
        try:
            return asdict(lose(processes, given.replicas, lambda: processes[-1].pid))
        except (TimeoutError, RankEnded) as error:
            return {"failure": f"{error}: {last_words(logs)}"}


def last_words(logs: Sequence[Path]) -> str:
    """The last error of a replica's log, with the line of torchft it came through."""
    for log in logs:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raised = [at for at, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception|Timeout)\b", line)]
        if raised:
            places = [line for line in lines[: raised[-1]] if line.startswith("File ") and "torchft/" in line]
            where = f" in torchft/{places[-1].split('torchft/')[-1].replace(chr(34), '')}" if places else ""
            return f"{lines[raised[-1]][:160]}{where}"
    return "nothing said"


def main() -> None:
    """Print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--heartbeat-ms", type=int, help="of the lighthouse; default: torchft's, 5000")
    parser.add_argument("--timeout", type=float, help="seconds, of collectives; default: torchft's, 60")
    parser.add_argument("command", nargs="+", help="module of a replica, and its options after --")
    with tempfile.TemporaryDirectory(prefix="resihp-torchft-") as folder:
        found = run(parser.parse_args(), Path(folder))
    print(json.dumps({**found, "version": metadata.version("torchft")}), flush=True)


if __name__ == "__main__":
    main()

"""A plain DDP job of 4 ranks loses one in mid-iteration: seconds until the other three have committed a step again.

    python -m benchmarks.attach_survival --runs 5 [--torchft PYTHON --torchft-runs 2]

`--torchft` names the Python of an environment of its own with the public torchft package: the same model, batches and
optimizer, the same signal, in turns with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.attach_survival.commits import Loss, lose
from benchmarks.report import Spread, machine, milliseconds, table, write

TUNED = ("--heartbeat-ms", "300", "--timeout", "5")
_ROOT = Path(__file__).parents[2]


def launched(ranks: int) -> Loss:
    """One job under `resihp launch`, one death."""
    command = [sys.executable, "-m", "resihp_cli", "launch", "-n", str(ranks)]
    command += [sys.executable, "-m", "benchmarks.attach_survival.launch_rank"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT)
    try:
        return lose([launcher], ranks, lambda: rank_pid(launcher.pid, ranks - 1))
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(timeout=30)
        assert launcher.stdout is not None
        launcher.stdout.close()


def rank_pid(launcher: int, rank: int) -> int:
    """The process of a rank, found among the launcher's children by its environment."""
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            return int(pid)
    raise LookupError(f"no rank {rank} under process {launcher}")


def torchft(python: str, ranks: int, runs: int, bounds: Sequence[str]) -> list[dict[str, object]]:
    """Raises CalledProcessError."""
    command = [python, "-m", "benchmarks.attach_survival.torchft_job", "--ranks", str(ranks), "--runs", str(runs)]
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *bounds], check=True, capture_output=True, text=True, env=env, cwd=_ROOT)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def row(name: str, losses: Sequence[Loss], failures: Sequence[str] = ()) -> list[str]:
    """Of one system."""
    every = [milliseconds(max(0.0, loss.stall_s)) for loss in losses] + list(failures)
    if not losses:
        return [name, "-", ", ".join(every), "-"]
    stall, iteration = Spread.of([loss.stall_s for loss in losses]), Spread.of([loss.iteration_s for loss in losses])
    return [name, milliseconds(max(0.0, stall.median)), ", ".join(every), milliseconds(iteration.median)]


def main() -> None:
    """Write benchmarks/results/attach_survival.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torchft", metavar="PYTHON")
    parser.add_argument("--torchft-runs", type=int, default=2)
    given = parser.parse_args()
    facts = {**machine(), "job": f"MLP, 0.9 M parameters, plain DDP, {given.ranks} ranks, float32, gloo, loopback"}
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = [row("`resihp launch`", [launched(given.ranks) for _ in range(given.runs)])]
    if given.torchft:
        for how, bounds in (("default timeouts", ()), (f"tuned ({' '.join(TUNED)})", TUNED)):
            found = torchft(given.torchft, given.ranks, given.torchft_runs, bounds)
            losses = [Loss(float(str(f["total_s"])), float(str(f["iteration_s"]))) for f in found if "total_s" in f]
            version = next((f["version"] for f in found if "version" in f), "")
            rows.append(row(f"torchft {version}, {how}", losses, ["no loss" for f in found if "error" in f]))
    body = (
        "One rank is killed (SIGKILL) in the middle of an iteration. Stall: from the signal to the first commit of the "
        "last survivor, less one iteration. The surviving processes go on. Measured."
    )
    if given.torchft:
        body += (
            " One system after the other on the same cores; torchft runs with its lighthouse and manager servers. `no "
            "loss`: the job did not get that far within its time."
        )
    body += f"\n\n{table(('system', 'stall, median ms', 'every run', 'iteration ms'), rows)}"
    command = f"python -m benchmarks.attach_survival --runs {given.runs}"
    command += f" --torchft PYTHON --torchft-runs {given.torchft_runs}" if given.torchft else ""
    print(write("attach_survival", "Plain DDP: loss of a rank", command, facts, body).read_text())


if __name__ == "__main__":
    main()

"""A plain DDP job of 4 ranks loses one in mid-iteration: seconds until the other three have committed a step again.

    python -m benchmarks.attach_survival --runs 5 [--torchft PYTHON] [--kept FILE]

`--torchft` names the Python of an environment of its own with the public torchft package: the same model, batches and
optimizer, the same signal, in turns with ours. With `--kept` a call goes on where an earlier one was cut off.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.beside_torchft.commits import RankEnded, lose
from benchmarks.beside_torchft.rounds import CONFIGURED, Outcome, Side, circumstances, in_turns, render, torchft
from benchmarks.report import write

RANK = "benchmarks.attach_survival.torchft_rank"
_ROOT = Path(__file__).parents[2]


def launched(ranks: int) -> Outcome:
    """One job under `resihp launch`, one death."""
    command = [sys.executable, "-m", "resihp_cli", "launch", "-n", str(ranks)]
    command += [sys.executable, "-m", "benchmarks.attach_survival.launch_rank"]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT)
    try:
        return asdict(lose([launcher], ranks, lambda: rank_pid(launcher.pid, ranks - 1)))
    except (TimeoutError, RankEnded) as error:
        return {"failure": str(error)}
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


def sides(ranks: int, python: str | None) -> list[Side]:
    """Ours, then torchft's."""
    lost = f"one of {ranks}"
    found = [Side("`resihp launch`", lost, partial(launched, ranks))]
    for tuned in (False, True) if python else ():
        how = "tuned timeouts" if tuned else "default timeouts"
        for gradients, name in (("manager", "`Manager.allreduce`"), ("ddp", "its `DistributedDataParallel`")):
            run = partial(torchft, str(python), ranks, tuned, RANK, "--gradients", gradients)
            found.append(Side(f"torchft, {name}, {how}", lost, run))
    return found


def main() -> None:
    """Write benchmarks/results/attach_survival.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torchft", metavar="PYTHON")
    parser.add_argument("--kept", type=Path, help="what is measured, read and added to")
    given = parser.parse_args()
    facts = {"job": f"MLP, 0.9 M parameters, plain DDP, {given.ranks} ranks, float32, gloo, loopback"}
    os.environ["OMP_NUM_THREADS"] = "1"
    every = sides(given.ranks, given.torchft)
    found = in_turns(every, given.runs, given.kept)
    body = (
        "One rank is killed (SIGKILL) in the middle of an iteration. Stall: from the signal to the first commit of the "
        "last survivor, less one iteration. The surviving processes go on. Measured."
    )
    if given.torchft:
        body += f" One system after the other on the same cores, round by round. {CONFIGURED}"
    command = f"python -m benchmarks.attach_survival --runs {given.runs}" + " --torchft PYTHON" * bool(given.torchft)
    text = f"{body}\n\n{render(every, found)}"
    print(
        write("attach_survival", "Plain DDP: loss of a rank", command, circumstances(found) | facts, text).read_text()
    )


if __name__ == "__main__":
    main()

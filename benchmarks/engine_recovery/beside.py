"""The loss of one of two and one of three replicas: the engine's and torchft's, in turns."""

from __future__ import annotations

import contextlib
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.beside_torchft.rounds import CONFIGURED, Outcome, Side, circumstances, in_turns, render, torchft
from benchmarks.engine_recovery.losses import data_parallel, lose
from benchmarks.report import write
from resihp_trainer.trials.zygote_client import ZygoteClient


def beside(python: str, runs: int, kept: Path | None) -> None:
    """Write benchmarks/results/torchft.md. `python`: of an environment that has torchft."""
    sides: list[Side] = []
    for replicas in (2, 3):
        lost = f"one of {replicas}"
        sides.append(Side("ResiHP", lost, partial(ours, replicas)))
        for tuned in (False, True):
            how = "tuned" if tuned else "default"
            sides.append(Side(f"torchft, {how} timeouts", lost, partial(theirs, python, replicas, tuned)))
    facts = {"job": "demo model, DP 2 and DP 3, float32, gloo, loopback"}
    found = in_turns(sides, runs, kept)
    body = (
        "The demo's model, data parallel, one process per replica, gloo over loopback, the same cores, one replica "
        "killed (SIGKILL) in mid-iteration. Stall: from the signal to the next commit of the last survivor, less one "
        f"iteration. {runs} rounds, one system after the other in each. ResiHP's agents and scheduler are played by "
        f"the benchmark (recovery.md has the whole system). {CONFIGURED}\n\n"
    )
    command = f"python -m benchmarks.engine_recovery --torchft PYTHON --runs {runs}"
    text = body + render(sides, found)
    print(
        write("torchft", "Loss of a replica, beside torchft", command, circumstances(found) | facts, text).read_text()
    )


def ours(replicas: int) -> Outcome:
    """One job of the engine, one death."""
    with tempfile.TemporaryDirectory(prefix="resihp-recovery-") as folder:
        zygote = ZygoteClient(Path(folder), environment={"OMP_NUM_THREADS": "1"})
        with contextlib.closing(zygote):
            found = lose(zygote, zygote.store()[1], data_parallel(replicas), replicas - 1, "compute")
    return {"total_s": found.total_s, "iteration_s": found.iteration_s}


def theirs(python: str, replicas: int, tuned: bool) -> Outcome:
    return torchft(python, replicas, tuned, "benchmarks.engine_recovery.torchft_replica")

"""Throughput of the healthy engine against a plain PyTorch program of the same layout, in turns, in one run.

    python -m benchmarks.reference --blocks 12

PP 2 x DP 2, four processes each, gloo over loopback, the same documents, micro-batches and initial parameters. While
one of the two runs, the processes of the other stand still (SIGSTOP). The losses of the first iterations are compared,
so that both are known to train the same model.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from statistics import median

import psutil

from benchmarks.reference.plain import run
from benchmarks.report import machine, milliseconds, table, write
from resihp_messages import JobSpec
from resihp_messages.link import IterationCommitted
from resihp_plan import Cluster, ParallelPlan
from resihp_plan.planner import plan_initial
from resihp_trainer.reference import model_of
from resihp_trainer.trials.trainer_job import TrainerJob
from resihp_trainer.trials.zygote_client import ZygoteClient

WORKERS = 4
BLOCK = 10
"""Iterations of one block; each block begins with `LEAD` further ones that do not count."""
LEAD = 2
BOUND = 0.97
DRAWS = 4000
SPEC = JobSpec.model_validate({"name": "reference", "iterations": 1_000_000, "parallel": {"tp": 1, "pp": 2, "dp": 2}})


class Plain:
    """The plain program's processes."""

    def __init__(self, plan: ParallelPlan) -> None:
        context = multiprocessing.get_context("spawn")
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(WORKERS):
            ours, theirs = context.Pipe()
            arguments = (rank, port, SPEC.model_dump_json(), plan.to_dict(), theirs)
            process = context.Process(target=run, args=arguments, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            pipe.recv()

    def iterations(self, count: int) -> tuple[float, float, float]:
        """Seconds of rank 0, processor seconds of all ranks, and the last loss."""
        before = cpu_seconds(self.pids)
        for pipe in self.pipes:
            pipe.send(count)
        answers: list[tuple[float, float]] = [pipe.recv() for pipe in self.pipes]
        return answers[0][0], cpu_seconds(self.pids) - before, answers[0][1]

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self.processes if p.pid is not None]

    def close(self) -> None:
        signal_all(self.pids, signal.SIGCONT)
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(0)
            process.join(10)
            process.kill()


class Engine:
    """The engine's workers."""

    def __init__(self, plan: ParallelPlan, folder: Path) -> None:
        self.zygote = ZygoteClient(folder, environment={"OMP_NUM_THREADS": "1"})
        self.job = TrainerJob(self.zygote, self.zygote.store()[1], SPEC, range(WORKERS))
        self.job.fences = False
        self.job.install(plan.with_epoch(1), "initial")

    def iterations(self, count: int) -> tuple[float, float]:
        """Seconds between the arrivals of rank 0's reports of an iteration and of the one `count` later, and processor
        seconds of all ranks meanwhile."""
        first = self.job.committed(0) + LEAD
        self._reach(first)
        start, before = time.perf_counter(), cpu_seconds(self.pids)
        self._reach(first + count)
        return time.perf_counter() - start, cpu_seconds(self.pids) - before

    def _reach(self, iteration: int) -> None:
        self.job.wait(lambda: self.job.committed(0) >= iteration, f"iteration {iteration}")

    @property
    def pids(self) -> list[int]:
        return [w.pid for w in self.job.workers.values()]

    def losses(self) -> dict[int, float]:
        return {f.iteration: f.loss for _, f in self.job.all(IterationCommitted) if f.loss is not None}

    def close(self) -> None:
        self.job.close()
        self.zygote.close()


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far."""
    return float(sum(t.user + t.system for t in (psutil.Process(pid).cpu_times() for pid in pids)))


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


@dataclass(frozen=True)
class Found:
    """Seconds per iteration of each block, in pairs, and the largest difference of a loss."""

    engine: Sequence[tuple[float, float]]
    """(wall, processor of all ranks)."""
    plain: Sequence[tuple[float, float]]
    loss_difference: float

    def ratios(self, which: int) -> list[float]:
        """The plain program's seconds (0: wall, 1: processor) over the engine's: above 1 the engine is cheaper."""
        return [p[which] / e[which] for e, p in zip(self.engine, self.plain, strict=True)]

    def interval(self, which: int) -> tuple[float, float]:
        """95 %, bootstrap over pairs."""
        rng, ratios = Random(0), self.ratios(which)
        drawn = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
        return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]


def measure(blocks: int) -> Found:
    """Both, in turns."""
    micro_batches = SPEC.batch.micro_batches
    plan = plan_initial(Cluster.of(WORKERS), model_of(SPEC), 1, 2, 2, micro_batches)
    with tempfile.TemporaryDirectory(prefix="resihp-reference-") as folder:
        plain = Plain(plan)
        engine: Engine | None = None
        try:
            _, _, loss = plain.iterations(5)
            signal_all(plain.pids, signal.SIGSTOP)
            engine = Engine(plan, Path(folder))
            engine.iterations(5)
            difference = abs(engine.losses()[5] - loss)
            signal_all(engine.pids, signal.SIGSTOP)
            engine_s: list[tuple[float, float]] = []
            plain_s: list[tuple[float, float]] = []
            for _ in range(blocks):
                signal_all(engine.pids, signal.SIGCONT)
                wall, cpu = engine.iterations(BLOCK)
                engine_s.append((wall / BLOCK, cpu / BLOCK))
                signal_all(engine.pids, signal.SIGSTOP)
                signal_all(plain.pids, signal.SIGCONT)
                plain.iterations(LEAD)
                wall, cpu, _ = plain.iterations(BLOCK)
                plain_s.append((wall / BLOCK, cpu / BLOCK))
                signal_all(plain.pids, signal.SIGSTOP)
                print(f"engine {engine_s[-1]}, plain {plain_s[-1]}", flush=True)
        finally:
            if engine is not None:
                engine.close()
            plain.close()
    return Found(engine_s, plain_s, difference)


def render(found: Found) -> str:
    """Markdown."""
    rows = []
    for which, what in enumerate(("wall ms", "processor ms, four ranks")):
        low, high = found.interval(which)
        engine, plain = ([block[which] for block in blocks] for blocks in (found.engine, found.plain))
        rows.append(
            [
                what,
                milliseconds(median(engine)),
                milliseconds(median(plain)),
                f"{median(found.ratios(which)):.1%}",
                f"{low:.1%} to {high:.1%}",
            ]
        )
    wall = median(found.ratios(0))
    return "\n\n".join(
        [
            f"Throughput of the engine relative to the plain program: {wall:.1%} (wall time, median of "
            f"{len(found.engine)} pairs of blocks): {'within' if wall >= BOUND else 'NOT within'} 3 %.",
            table(("per iteration", "engine", "plain PyTorch", "plain / engine", "95 % interval"), rows),
            f"Both train the same: after five iterations the losses differ by {found.loss_difference:.1e} (float32).",
        ]
    )


def main(blocks: int) -> None:
    facts = {**machine(), "job": f"demo model, float32, PP 2 x DP 2, 1F1B, {BLOCK} iterations per block, in turns"}
    body = render(measure(blocks))
    command = f"python -m benchmarks.reference --blocks {blocks}"
    print(write("reference", "The healthy engine against plain PyTorch", command, facts, body).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    main(parser.parse_args().blocks)

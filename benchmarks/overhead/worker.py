"""A worker whose iterations take turns: blocks of whole ones and blocks of bare ones, in one process.

A bare iteration trains the same, and clips by the same global norm, but nobody votes, counts samples, times units,
digests state, copies it or reports. What is left in both: the liveness ticks of waits, which belong to the abortable
communication.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from resihp_messages.page import ProgressPage
from resihp_trainer import iteration as whole
from resihp_trainer import worker
from resihp_trainer.context import Context
from resihp_trainer.data import documents
from resihp_trainer.engine import Engine
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Interpreter
from resihp_trainer.join import Applied
from resihp_trainer.state import Kept, TrainingState

BLOCK = 10
"""Iterations of one kind in a row."""
SHIFT = 5
"""So that no snapshot (every 10 iterations) begins shortly before the end of a block of whole iterations."""
LEAD = 2
"""The first iterations of a block are not counted: they wait for what the other kind left."""


def place(iteration: int) -> tuple[int, int]:
    """Number of the block of an iteration (from 1), and its place in it. Even blocks have everything on."""
    return divmod(iteration - 1 + SHIFT, BLOCK)


def is_whole(iteration: int) -> bool:
    return place(iteration)[0] % 2 == 0


class BareInterpreter(Interpreter):
    """Does not look at the clock."""

    @contextmanager
    def _timed(self, *_: Any) -> Iterator[None]:
        yield


class PairedEngine(Engine):
    """Notes wall and processor seconds of every iteration; leaves them in the output folder at the end."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rows: list[tuple[int, float, float]] = []

    def _iterate(self, active: ActiveEpoch) -> int:
        iteration = self._state.committed + 1
        if not is_whole(iteration):
            active = replace(active, interpreter=_bare(active.interpreter))
        wall, cpu = time.perf_counter(), time.process_time()
        if is_whole(iteration):
            epoch = super()._iterate(active)
        else:
            epoch = 0
            bare_iteration(self._context, active, self._state)
        self.rows.append((iteration, time.perf_counter() - wall, time.process_time() - cpu))
        if iteration == self._context.spec.iterations:
            self._leave_rows()
        return epoch

    def _leave_rows(self) -> None:
        assert self._context.spec.output_dir is not None
        path = Path(self._context.spec.output_dir) / f"overhead-{self._context.rank}.json"
        path.write_text(json.dumps(self.rows))


def _bare(interpreter: Interpreter | None) -> Interpreter | None:
    if interpreter is None:
        return None
    parts = {f.name: getattr(interpreter, f.name) for f in fields(Interpreter)}
    return BareInterpreter(**{**parts, "operation": _nothing})


def _nothing() -> None:
    return None


def bare_iteration(context: Context, active: ActiveEpoch, state: TrainingState) -> None:
    """The same step without vote, proof, telemetry and report."""
    iteration = state.committed + 1
    batch = documents(context.corpus, context.spec.batch, context.spec.seed, iteration)
    whole._execute(context, active, batch)
    gradients = whole._synchronise(context, active, iteration)
    state.kept = Kept(active.plan.epoch, gradients)
    norm_sq = torch.tensor([gradients.norm_sq], dtype=torch.float64)
    active.world.all_reduce(norm_sq).wait()
    samples = state.applied.samples if state.applied else 0
    norm = math.sqrt(float(norm_sq))
    state.commit(active.plan.epoch, Applied(iteration, active.plan.epoch, batch.num_tokens, samples, norm, 0.0))


def main(rank: int, job: str, link_socket: socket.socket, page: ProgressPage) -> int:
    """Worker entry point of the zygote."""
    with _engine(PairedEngine):
        return worker.main(rank, job, link_socket, page)


@contextlib.contextmanager
def _engine(engine: Callable[[Context], Engine]) -> Iterator[None]:
    original = getattr(worker, "Engine")  # noqa: B009
    setattr(worker, "Engine", engine)  # noqa: B010  (a class in its place is what mypy would refuse)
    try:
        yield
    finally:
        setattr(worker, "Engine", original)  # noqa: B010

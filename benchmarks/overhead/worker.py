"""A worker whose iterations take turns: blocks with everything on, with nothing, with one ingredient, in one process.

A bare iteration trains the same, and clips by the same global norm, but nobody votes, counts samples, times units,
digests state, copies it or reports. What is left in all: the liveness ticks of waits, which belong to the abortable
communication.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.ingredients import ALL, ALONE, BARE, WHOLE, Ledger, Part, Variant, with_parts
from resihp_messages import link as frames
from resihp_messages.link import IterationCommitted
from resihp_messages.page import ProgressPage
from resihp_trainer import engine as engine_room
from resihp_trainer import iteration as steps
from resihp_trainer import link as link_room
from resihp_trainer import worker
from resihp_trainer.context import Context
from resihp_trainer.data import documents
from resihp_trainer.digests import Fingerprints
from resihp_trainer.engine import Engine
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Interpreter
from resihp_trainer.iteration import Step
from resihp_trainer.join import Applied
from resihp_trainer.memory import ResidentMemory
from resihp_trainer.saving import Saver
from resihp_trainer.state import Kept
from resihp_trainer.vote import Ballot, Outcome, count

BLOCK = 12
"""Iterations of one kind in a row; snapshots and fingerprints are due once in it."""
LEAD = 2
"""The first iterations of a block are not counted: they wait for what the other kind left."""
SHIFT = 7
"""So that what is due is due in the middle of a block."""
ALONE_VARIABLE = "RESIHP_BENCH_ALONE"
"""Environment: whether blocks of single ingredients take part."""


def variants(alone: bool) -> tuple[Variant, ...]:
    """What takes turns, in order: everything, nothing, and with `alone` each ingredient, nothing."""
    singles = [v for single in ALONE for v in (single, BARE)] if alone else []
    return (WHOLE, BARE, *singles)


def place(iteration: int) -> tuple[int, int]:
    """Number of the block of an iteration (from 1), and its place in it."""
    return divmod(iteration - 1 + SHIFT, BLOCK)


class PairedEngine(Engine):
    """Notes wall and processor seconds of every iteration; leaves them in the output folder at the end."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rows: list[tuple[int, float, float, float, dict[str, float]]] = []
        self.ledger = Ledger()
        charge(self.ledger)

    def _iterate(self, active: ActiveEpoch) -> int:
        iteration = self._state.committed + 1
        kinds = variants(os.environ.get(ALONE_VARIABLE) == "1")
        parts = kinds[place(iteration)[0] % len(kinds)].parts
        active = with_parts(active, parts, self._saver.poll)
        self.ledger.take()
        wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
        epoch = super()._iterate(active) if parts == ALL else self._iterate_with(active, parts)
        spent = time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - thread
        self.rows.append((iteration, *spent, self.ledger.take()))
        if iteration == self._context.spec.iterations:
            assert self._context.spec.output_dir is not None
            path = Path(self._context.spec.output_dir) / f"overhead-{self._context.rank}.json"
            path.write_text(json.dumps(self.rows))
        return epoch

    def _iterate_with(self, active: ActiveEpoch, parts: frozenset[Part]) -> int:
        """The same step with some ingredients only."""
        context, state = self._context, self._state
        iteration, start = state.committed + 1, context.clock()
        batch = documents(context.corpus, context.spec.batch, context.spec.seed, iteration)
        work, covered = steps._execute(context, active, batch)
        gradients = steps._synchronise(context, active, iteration)
        state.kept = Kept(active.plan.epoch, gradients)
        copies = self._saver.ballot()[0] if Part.SNAPSHOTS in parts else 0
        world = len(active.plan.world)
        if Part.VOTE in parts:
            total = steps._ballot(work, covered, batch, gradients, 0).vector(len(batch.documents))
            active.world.all_reduce(total).wait()
            outcome = count(total, iteration, world_size=world, expected_tokens=batch.num_tokens, epoch=0)
        else:
            sums = torch.tensor([gradients.norm_sq, copies], dtype=torch.float64)
            active.world.all_reduce(sums).wait()
            norm, copies = math.sqrt(float(sums[0])), int(sums[1])
            outcome = Outcome(iteration, norm, batch.num_tokens, work.loss, 0, 0, 0, "", copies)
        samples = state.applied.samples if state.applied else 0
        applied = Applied(iteration, active.plan.epoch, batch.num_tokens, samples, outcome.norm, outcome.loss)
        state.commit(active.plan.epoch, applied)
        if Part.SNAPSHOTS in parts:
            self._saver.after_commit(active.held, applied, outcome)
        if Part.FINGERPRINTS in parts and iteration % context.spec.telemetry.fingerprint_every == 0:
            active.fingerprints.take()
        if Part.REPORT in parts:
            self._report(active, Step(outcome, work, {}), context.clock() - start)
        return 0

    def _report(self, active: ActiveEpoch, step: Step, seconds: float) -> None:
        self._context.send(
            IterationCommitted(
                epoch=active.plan.epoch,
                iteration=step.outcome.iteration,
                first_of_epoch=False,
                step_s=seconds,
                forward_s=step.work.forward_s,
                backward_s=step.work.backward_s,
                tp_wait_s=0.0,
                pp_wait_s=0.0,
                dp_wait_s=0.0,
                tokens=step.work.tokens,
                sum_sq_len=step.work.sum_sq_len,
                rss_bytes=self._memory.bytes(),
                loss=0.0,
                global_tokens=step.outcome.tokens,
                samples_expected=0,
                samples_once=0,
            )
        )


def charge(ledger: Ledger) -> None:
    """Put a clock around the entries of the ingredients, for the rest of this process."""
    entries: list[tuple[Any, str, Part]] = [
        (Ballot, "vector", Part.VOTE),
        (steps, "_ballot", Part.VOTE),
        (steps, "count", Part.VOTE),
        (Interpreter, "_begin", Part.TIMING),
        (Interpreter, "_note", Part.TIMING),
        (ProgressPage, "operation", Part.TIMING),
        (ProgressPage, "place", Part.TIMING),
        (frames, "IterationCommitted", Part.REPORT),
        (ResidentMemory, "bytes", Part.REPORT),
        (engine_room, "telemetry", Part.REPORT),
        (link_room, "frame", Part.REPORT),
        (Fingerprints, "take", Part.FINGERPRINTS),
        (Saver, "poll", Part.SNAPSHOTS),
        (Saver, "ballot", Part.SNAPSHOTS),
        (Saver, "after_commit", Part.SNAPSHOTS),
    ]
    for owner, name, part in entries:
        setattr(owner, name, ledger.charged(part, getattr(owner, name)))


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

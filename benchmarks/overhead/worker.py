"""A worker whose iterations take turns: blocks with everything on, blocks with nothing, in one process.

A bare iteration trains the same, and clips by the same global norm, but nobody votes, counts samples, times units,
digests state, copies it or reports. What is left in both: the liveness ticks of waits, which belong to the abortable
communication. All iterations train on the documents of the first, so that pairs differ in nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.ingredients import Ledger, Part, Variant, unwatched
from resihp_messages import link as frames
from resihp_messages.page import ProgressPage
from resihp_trainer import engine as engine_room
from resihp_trainer import iteration as steps
from resihp_trainer import link as link_room
from resihp_trainer import worker
from resihp_trainer.context import Context
from resihp_trainer.data import Batch, documents
from resihp_trainer.digests import Fingerprints
from resihp_trainer.engine import Engine
from resihp_trainer.install import ActiveEpoch
from resihp_trainer.interpreter import Interpreter
from resihp_trainer.join import Applied
from resihp_trainer.memory import ResidentMemory
from resihp_trainer.saving import Saver
from resihp_trainer.state import Kept
from resihp_trainer.vote import Ballot

BLOCK = 5
"""Iterations of one kind in a row."""
LEAD = 1
"""The first iterations of a block are not counted: they wait for what the other kind left."""
SHIFT = 2
"""So that what is due is due in the second iteration of a block with everything on, and over at its end."""
EVERY = 40
"""Iterations from one round of snapshots and fingerprints to the next: every fourth block with everything on has one.
More often than by default, to see more of them; the default's share is worked out."""


def variant_of(block: int) -> Variant:
    """They take turns."""
    return Variant.BARE if block % 2 else Variant.WHOLE


def place(iteration: int) -> tuple[int, int]:
    """Number of the block of an iteration (from 1), and its place in it."""
    return divmod(iteration - 1 + SHIFT, BLOCK)


def is_audited(block: int, within: int = LEAD) -> bool:
    """Whether the ledger is kept in an iteration: in half of the blocks with everything on, and in half of those with a
    round; and in the first one of the others, which does not count, for what the ledger itself takes."""
    if variant_of(block) is Variant.BARE:
        return within < LEAD
    return (block // 2 + block // (2 * EVERY // BLOCK)) % 2 == 0


THREADS = "threads"
"""In a row's ledger, beside the parts: the threads that write reports and copy state."""


def beside_s() -> float:
    """Processor seconds so far of the threads that only watching needs."""
    ids = [t.native_id for t in threading.enumerate() if t.name.startswith(("link-writer", "copier"))]
    return sum(int(Path(f"/proc/self/task/{i}/schedstat").read_text().split()[0]) for i in ids) / 1e9


class PairedEngine(Engine):
    """Notes wall and processor seconds of every iteration; leaves them in the output folder at the end."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.rows: list[tuple[int, float, float, float, dict[str, float]]] = []
        self.ledger = Ledger()
        self.ledger.calibrate()
        charge(self.ledger)
        self._batch = documents(context.corpus, context.spec.batch, context.spec.seed, 1)
        setattr(steps, "documents", self._documents)  # noqa: B010

    def _documents(self, *given: Any) -> Batch:
        """In place of `data.documents`, whose last argument is the iteration."""
        return replace(self._batch, iteration=given[-1])

    def _iterate(self, active: ActiveEpoch) -> int:
        iteration = self._state.committed + 1
        variant = variant_of(place(iteration)[0])
        self.ledger.take()
        self.ledger.is_open = is_audited(*place(iteration))
        if variant is Variant.BARE:
            active = unwatched(active, self.ledger)
        threads_s = beside_s()
        wall, cpu, thread = time.perf_counter(), time.process_time(), time.thread_time()
        epoch = super()._iterate(active) if variant is Variant.WHOLE else self._iterate_bare(active)
        spent = time.perf_counter() - wall, time.process_time() - cpu, time.thread_time() - thread
        self.rows.append((iteration, *spent, {**self.ledger.take(), THREADS: beside_s() - threads_s}))
        if iteration == self._context.spec.iterations:
            assert self._context.spec.output_dir is not None
            path = Path(self._context.spec.output_dir) / f"overhead-{self._context.rank}.json"
            path.write_text(json.dumps(self.rows))
        return epoch

    def _iterate_bare(self, active: ActiveEpoch) -> int:
        """The same step, unwatched."""
        context, state = self._context, self._state
        iteration = state.committed + 1
        batch = self._documents(iteration)
        work, _ = steps._execute(context, active, batch)
        gradients = steps._synchronise(context, active, iteration)
        state.kept = Kept(active.plan.epoch, gradients)
        norm_sq = torch.tensor([gradients.norm_sq], dtype=torch.float64)
        active.world.all_reduce(norm_sq).wait()
        samples = state.applied.samples if state.applied else 0
        norm = math.sqrt(float(norm_sq))
        applied = Applied(iteration, active.plan.epoch, batch.num_tokens, samples, norm, work.loss)
        state.commit(active.plan.epoch, applied)
        return 0


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
        (frames, "unchecked", Part.REPORT),
        (ResidentMemory, "recent_bytes", Part.REPORT),
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

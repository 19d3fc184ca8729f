"""Checkpoints while training goes on: a thread writes a copy of the shards; a vote says when all files are there.

Rounds as in `snapshots`: all ranks begin one after the same commit, and a round that an epoch change cuts short is
given up. What a thread could not write ends the round on all ranks, and the reason is in its worker's log and goes to
the agent; training goes on, the next round tries again. Older checkpoints are deleted by a newer complete one only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from shutil import rmtree

import torch

from resihp_messages import CheckpointConfig
from resihp_trainer.checkpoint import complete, partial_of, write_part, writers_of
from resihp_trainer.join import Applied
from resihp_trainer.shards import ShardSet

Failed = Callable[[int, Path, str], None]
"""(iteration, folder or file, reason) of a checkpoint that is not written; called in any thread."""


class Checkpoints:
    """Those that one rank writes. `path` of the config must be set."""

    def __init__(
        self, config: CheckpointConfig, *, seed: int, dtype: torch.dtype, writer: Executor, failed: Failed
    ) -> None:
        assert config.path is not None
        self._failed = failed
        self.path = Path(config.path)
        self._config, self._seed, self._dtype, self._writer = config, seed, dtype, writer
        self._round: tuple[ShardSet, Applied, Future[None] | None] | None = None
        self._naming: Future[Path] | None = None

    def leave(self) -> None:
        """The epoch is over, and the round with it."""
        self._round = None

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way: the same on all ranks of the epoch."""
        return self._round is not None

    @property
    def is_writing(self) -> bool:
        """Whether a thread of this process works for a checkpoint."""
        running = (self._round[2] if self._round else None, self._naming)
        return any(work is not None and not work.done() for work in running)

    def begin(self, held: ShardSet, applied: Applied, filled: Future[None] | None = None) -> None:
        """Begin a round: `held` does not change any more, and is complete once `filled` is done."""
        plan = held.layout.plan
        written = None
        if held.rank in writers_of(plan):
            partial = partial_of(self.path, applied.iteration, plan.epoch)

            def write() -> None:
                if filled is not None:
                    filled.result()
                write_part(partial, held)

            written = self._writer.submit(write)
        self._round = held, applied, written

    def report(self, world_size: int, spoilt: int | None = None) -> int:
        """For the ballot: 1 if this rank's file is written, more than the world if that failed. `spoilt`: an iteration
        whose copy, from which the file is written, is of no use."""
        if self._round is None:
            return 0
        held, applied, written = self._round
        error: BaseException | None = None
        if applied.iteration == spoilt:
            error = ValueError("the copy is not what was fingerprinted")
        elif written is not None and not written.done():
            return 0
        elif written is not None:
            error = written.exception()
        if error is None:
            return 1
        self._fail(applied.iteration, partial_of(self.path, applied.iteration, held.layout.plan.epoch), error)
        return world_size + 1

    def conclude(self, votes: int, world_size: int) -> Future[Path] | None:
        """The outcome of a vote. If all files are there, one rank's thread gives the checkpoint its name."""
        if self._round is None or votes < world_size:
            return None
        held, applied, _ = self._round
        self._round = None
        if held.rank != writers_of(held.layout.plan)[0]:
            return None
        if votes > world_size:  # room for the next one; what others still write there goes with the next complete one
            self._writer.submit(rmtree, partial_of(self.path, applied.iteration, held.layout.plan.epoch), True)
            return None

        def name() -> Path:
            try:
                return complete(
                    self.path,
                    held.layout,
                    applied,
                    seed=self._seed,
                    dtype=self._dtype,
                    keep=self._config.keep,
                )
            except (OSError, ValueError) as error:
                self._fail(applied.iteration, self.path, error)
                raise

        self._naming = self._writer.submit(name)
        return self._naming

    def _fail(self, iteration: int, path: Path, error: BaseException) -> None:
        print(f"checkpoint of iteration {iteration} is not written: {error}", file=sys.stderr, flush=True)
        self._failed(iteration, path, str(error))

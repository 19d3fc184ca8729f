"""When copies of the training state are taken, in memory and on disk: the hooks of the epoch loop.

What begins a round is a function of the iteration and of the votes of the epoch, so all ranks begin the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from resihp_messages import JobSpec
from resihp_plan import Bucket, Layout
from resihp_trainer.checkpoints import Checkpoints, Failed
from resihp_trainer.comm.port import Group
from resihp_trainer.digests import Fingerprints, is_fingerprinted
from resihp_trainer.join import Applied
from resihp_trainer.shards import ShardSet
from resihp_trainer.snapshots import PAUSE_S, Snapshots
from resihp_trainer.vote import Outcome


class Saver:
    """Snapshots and checkpoints of one rank. `tick` shows life while it waits."""

    def __init__(
        self, spec: JobSpec, rank: int, dtype: torch.dtype, tick: Callable[[], None], checkpoint_failed: Failed
    ) -> None:
        self._every, self._last, self._tick = spec.snapshots.every, spec.iterations, tick
        self._print_every = spec.telemetry.fingerprint_every
        self._apart_s, self._since_s = spec.snapshots.apart_s, 0.0
        self._voted_at = time.perf_counter()
        self._file_every = spec.checkpoints.every
        copier = ThreadPoolExecutor(1, "copier")  # its thread starts with the first use
        self.writer = ThreadPoolExecutor(1, "writer")
        self.snapshots = Snapshots(rank, dtype, copier, tick)
        self.checkpoints = (
            Checkpoints(spec.checkpoints, seed=spec.seed, dtype=dtype, writer=self.writer, failed=checkpoint_failed)
            if spec.checkpoints.path is not None
            else None
        )
        self._world_size, self._copies, self._is_first, self._wants_file = 0, False, True, False
        self._is_new = True
        """Nothing was committed in the epoch yet."""
        self._spent_s = 0.0

    @property
    def takes_copies(self) -> bool:
        """Whether ranks keep copies for each other."""
        return self._every > 0

    @property
    def is_copying(self) -> bool:
        """Whether a round is under way."""
        return self.snapshots.is_busy

    # --- epochs ---------------------------------------------------------------------------------------------------

    def enter(self, held: Layout, guards: Mapping[int, int], groups: Mapping[str, Group]) -> None:
        """An epoch is installed on all its ranks."""
        self.snapshots.enter(held, guards, groups)
        # Replicas are copies of each other, and guard nothing, unless they may differ: then each goes back to its own.
        may_differ = self.takes_copies and self._print_every > 0 and len(held.plan.replicas) > 1
        self._world_size, self._copies = len(held.plan.world), bool(guards) or may_differ
        self._is_first, self._is_new, self._wants_file = True, True, False
        self._since_s, self._voted_at = 0.0, time.perf_counter()

    def switch(self) -> None:
        """All ranks leave the epoch together for the next one: what was sent arrives first."""
        self.snapshots.finish()
        self.leave()

    def leave(self) -> None:
        """The epoch is over; nobody reads shards of it any more when this returns."""
        self.snapshots.rest()
        if self.checkpoints is not None:
            self.checkpoints.leave()

    # --- iterations -----------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Between operations of an iteration, while `is_copying`: go on without waiting."""
        start = time.perf_counter()
        self.snapshots.poll()
        self._spent_s += time.perf_counter() - start

    def ballot(self) -> tuple[int, int, float]:
        """`Ballot.copies`, `Ballot.files` and `Ballot.seconds`. After it no thread reads the shards."""
        start = time.perf_counter()
        copies = self.snapshots.report(self._world_size)
        spoilt = self.snapshots.spoilt
        files = self.checkpoints.report(self._world_size, spoilt) if self.checkpoints is not None else 0
        end, begin = time.perf_counter(), self._voted_at
        self._voted_at = end
        self._spent_s += end - start
        return copies, files, end - begin

    def after_commit(self, held: ShardSet, applied: Applied, outcome: Outcome) -> dict[str, float]:
        """Note the vote, perhaps begin a round. Returns the announced work of this iteration: kind -> seconds of this
        thread."""
        start, iteration = time.perf_counter(), applied.iteration
        was_copying = self.snapshots.is_busy
        was_writing = self.checkpoints is not None and self.checkpoints.is_writing
        self.snapshots.conclude(outcome.copies, self._world_size)
        if self.checkpoints is not None:
            self.checkpoints.conclude(outcome.files, self._world_size)
            self._wants_file |= iteration % self._file_every == 0
        self._since_s += outcome.seconds
        if is_fingerprinted(iteration, self._print_every, first_of_epoch=self._is_new):
            self.snapshots.fingerprinted(iteration)
        self._is_new = False
        if not outcome.next_epoch:
            self._begin(held, applied)
        spent_s = self._spent_s + time.perf_counter() - start
        self._spent_s = 0.0
        phases = {"snapshot": spent_s} if was_copying or self.snapshots.is_busy else {}
        return phases | ({"checkpoint": 0.0} if was_writing else {})

    def check(self, iteration: int, prints: Mapping[str, str], buckets: Sequence[Bucket]) -> None:
        """The fingerprints after `iteration`: a copy of that state must have the same."""
        self.snapshots.check(iteration, lambda copy: Fingerprints.of(copy, buckets).take() == prints)

    def _begin(self, held: ShardSet, applied: Applied) -> None:
        """A round, if one is due and the last one is over. Nothing is left to lose after the last iteration."""
        if self.snapshots.is_busy or applied.iteration >= self._last:
            return
        file = self.checkpoints if self._wants_file else None
        if file is not None and file.is_busy:
            file = None
        # The first commit of an epoch: the copies that died with other ranks are replaced at once.
        copies_due = self._copies and (self._is_first or self._is_time(applied.iteration))
        if not copies_due and file is None:
            return
        self._is_first, self._since_s = False, 0.0
        copy, filled = self.snapshots.begin(held, applied, lend=file is not None)
        if file is not None:
            self._wants_file = False
            file.begin(copy, applied, filled)

    def _is_time(self, iteration: int) -> bool:
        return iteration % self._every == 0 and self._since_s >= self._apart_s

    def save_last(self, held: ShardSet, applied: Applied, world: Group) -> None:
        """Checkpoint the state after the last iteration, which does not change any more. Raises what `Pending.wait`
        raises."""
        if self.checkpoints is None:
            return
        self.leave()
        self.checkpoints.begin(held, applied)
        while (votes := self.checkpoints.report(self._world_size)) == 0:
            self._tick()
            time.sleep(PAUSE_S)
        total = torch.tensor([float(votes)], dtype=torch.float64)
        world.all_reduce(total).wait()
        naming = self.checkpoints.conclude(int(total.item()), self._world_size)
        while naming is not None and not wait([naming], PAUSE_S).done:
            self._tick()

"""Copies of the training state in memory: each rank keeps one of its own shards and those of its wards.

A snapshot is the state after one committed iteration in the layout of one epoch. Taking it is a *round* of the epoch:
all ranks begin it after the same commit, copy their shards in a thread, exchange them in pairs beside the next
iteration, and learn from a vote that everybody is done. Only then older snapshots are dropped, so that a complete one
exists at every moment after the first round (docs/protocol.md, claim 5). Of the complete ones stay: the newest, and the
newest that is not newer than each of the last two fingerprints: when one shows that replicas differ, the state at the
one before can be gone back to (claim 9).

The training thread calls everything here; the copying thread only reads shards that nobody changes before the commit
after next, and writes buffers that nobody else reads before it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from resihp_plan import GroupKind, Layout, group_name
from resihp_trainer.comm.port import Group, Pending
from resihp_trainer.copies import copy_bytes, fill, is_intact, parts_of, shards_in
from resihp_trainer.join import Applied
from resihp_trainer.shards import ShardSet

Key = tuple[int, int]
"""(iteration, epoch of the layout)."""
MAX_OPEN = 2
"""Snapshots of rounds that epochs cut short that a rank keeps at most, beside complete ones."""
PAUSE_S = 0.05


@dataclass
class Snapshot:
    """This rank's part of one snapshot."""

    layout: Layout
    applied: Applied
    """The last step of the state."""
    dtype: torch.dtype
    copies: dict[int, Tensor] = field(default_factory=dict)
    """By the rank whose shards they are; arrived as a whole."""
    is_complete: bool = False
    """Whether a vote said that every rank has its part."""
    is_lent: bool = False
    """Whether a checkpoint reads the own copy."""

    @property
    def shards(self) -> dict[int, ShardSet]:
        """Views of the copies."""
        return {rank: shards_in(buffer, self.layout, rank, self.dtype) for rank, buffer in self.copies.items()}

    def drop_spoilt(self) -> None:
        """Keep the copies whose digest is right. For those who are about to use them; takes a second per gigabyte."""
        self.copies = {rank: buffer for rank, buffer in self.copies.items() if is_intact(buffer)}


@dataclass
class _Round:
    """The snapshot under way in the present epoch."""

    key: Key
    own: Tensor
    filled: Future[None]
    running: dict[int, tuple[Tensor, Pending]] | None = None
    """By ward; the own rank's entry is what goes to its guardian. None: not launched yet."""
    is_broken: bool = False
    is_same: Future[bool] | None = None
    """Whether the copy is what was fingerprinted; None: nothing was."""

    @property
    def is_done(self) -> bool:
        return self.running is not None and not self.running


class Snapshots:
    """All snapshots of one rank. `tick` is called while it waits for a copy in its own memory."""

    def __init__(self, rank: int, dtype: torch.dtype, copier: Executor, tick: Callable[[], None]) -> None:
        self.kept: dict[Key, Snapshot] = {}
        self._prints: tuple[int, ...] = ()
        """The last two iterations after which ranks took fingerprints, ascending."""
        self._rank, self._dtype, self._copier, self._tick = rank, dtype, copier, tick
        self._layout: Layout | None = None
        self._guards: Mapping[int, int] = {}
        self._groups: Mapping[str, Group] = {}
        self._round: _Round | None = None
        self._spare: list[Tensor] = []
        """Buffers of complete snapshots of this epoch that were dropped: fresh memory costs as much as the copying."""

    # --- epochs ---------------------------------------------------------------------------------------------------

    def enter(self, layout: Layout, guards: Mapping[int, int], groups: Mapping[str, Group]) -> None:
        """A new epoch is installed. `guards`: rank -> guardian, of all its ranks; empty: nothing is exchanged."""
        self._layout, self._guards, self._groups, self._round = layout, guards, groups, None
        self._spare.clear()

    def rest(self) -> None:
        """Wait until no thread reads shards any more: they are about to change, or to go. The round is over; what was
        copied here stays."""
        if self._round is not None:
            self._await(self._round.filled)
            self._note_own(self._round)
        self._round = None

    # --- rounds ---------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way: the same on all ranks of the epoch."""
        return self._round is not None

    @property
    def spoilt(self) -> int | None:
        """The iteration of the round under way, if `report` has found that this rank's copy is of no use."""
        return self._round.key[0] if self._round is not None and self._round.is_broken else None

    def begin(self, held: ShardSet, applied: Applied, *, lend: bool = False) -> tuple[ShardSet, Future[None]]:
        """Begin a round after the commit of `applied`. Returns the copy of the own shards, and when it is filled; to be
        used later only with `lend`."""
        assert self._round is None
        assert self._layout is held.layout
        own = self._buffer(held.layout, self._rank)
        key = applied.iteration, held.layout.plan.epoch
        self.kept[key] = Snapshot(held.layout, applied, self._dtype, is_lent=lend)
        self._round = _Round(key, own, self._copier.submit(fill, own, parts_of(held)))
        return shards_in(own, held.layout, self._rank, self._dtype), self._round.filled

    def check(self, iteration: int, is_same: Callable[[ShardSet], bool]) -> None:
        """The state after `iteration` was fingerprinted. If a round began there, its copy must have the same prints:
        what is damaged between the two looks right to everybody, and would be gone back to."""
        r = self._round
        if r is not None and r.key[0] == iteration and self._layout is not None:
            copy = shards_in(r.own, self._layout, self._rank, self._dtype)
            r.is_same = self._copier.submit(is_same, copy)

    def poll(self) -> None:
        """Go on with the round as far as it goes without waiting. Raises what `Pending.is_done` raises."""
        r = self._round
        if r is None or not r.filled.done():
            return
        if r.running is None:
            self._note_own(r)
            r.running = self._launch(r)
        for ward, (buffer, pending) in list(r.running.items()):
            if pending.is_done():
                del r.running[ward]
                if ward != self._rank:
                    self._note(r.key, ward, buffer)

    def report(self, world_size: int) -> int:
        """What the ballot says about the round: 1 if this rank's part is done, more than the world if it failed.

        Waits for the copy of the own shards, because the commit after the vote changes them.
        """
        r = self._round
        if r is None:
            return 0
        self._await(r.filled)
        if r.is_same is not None:
            self._await(r.is_same)
            r.is_broken |= not r.is_same.result()
        self.poll()
        return world_size + 1 if r.is_broken else int(r.is_done)

    def conclude(self, votes: int, world_size: int) -> None:
        """The outcome of a vote: the sum of what all ranks reported."""
        r = self._round
        if r is None or votes < world_size:
            return
        self._round = None
        if votes > world_size:  # somebody has no copy, or a damaged one: a later round will do better
            del self.kept[r.key]
            return
        self.kept[r.key].is_complete = True
        self._drop()

    def fingerprinted(self, iteration: int) -> None:
        """Ranks take fingerprints after the commit of `iteration`."""
        self._prints = (*self._prints, iteration)[-2:]
        self._drop()

    def finish(self) -> None:
        """Wait for what runs in the groups of this epoch, before all ranks leave it together."""
        r = self._round
        if r is None:
            return
        self._await(r.filled)
        self.poll()
        for _, pending in list((r.running or {}).values()):
            pending.wait()
        self.poll()

    def _await(self, work: Future[Any]) -> None:
        while not work.done() and not wait([work], PAUSE_S).done:
            self._tick()

    def _launch(self, r: _Round) -> dict[int, tuple[Tensor, Pending]]:
        """Both members of a pair post the lower rank's copy first, as the group demands."""
        assert self._layout is not None
        found = {}
        for ward, guardian in sorted(self._guards.items()):
            if self._rank in (ward, guardian):
                mine = ward == self._rank
                buffer = r.own if mine else self._buffer(self._layout, ward)
                name = group_name(GroupKind.COPY, (min(ward, guardian), max(ward, guardian)))
                found[ward] = buffer, self._groups[name].broadcast(buffer, ward)
        return found

    def _buffer(self, layout: Layout, rank: int) -> Tensor:
        size = copy_bytes(layout, rank, self._dtype)
        for i, buffer in enumerate(self._spare):
            if len(buffer) == size:
                return self._spare.pop(i)
        return torch.empty(size, dtype=torch.uint8)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _note_own(self, r: _Round) -> None:
        if r.filled.exception() is None:
            self._note(r.key, self._rank, r.own)
        else:
            r.is_broken = True

    def _note(self, key: Key, rank: int, buffer: Tensor) -> None:
        if (snapshot := self.kept.get(key)) is not None:
            snapshot.copies[rank] = buffer
            self._drop()

    def _drop(self) -> None:
        """Epochs that are cut short one after the other leave incomplete snapshots behind: the newest are worth most.
        The newest complete one stays whatever comes, and those that fingerprints may send us back to."""
        complete = sorted(key for key, s in self.kept.items() if s.is_complete)
        stay = set(complete[-1:])
        for iteration in self._prints:
            stay.update([key for key in complete if key[0] <= iteration][-1:])
        newest = max(complete, default=(-1, -1))
        stay.update(sorted(key for key, s in self.kept.items() if not s.is_complete and key > newest)[-MAX_OPEN:])
        for key in self.kept.keys() - stay:
            old = self.kept.pop(key)
            if old.is_complete and not old.is_lent and old.layout is self._layout:
                self._spare += old.copies.values()

    def forget_after(self, iteration: int) -> None:
        """All ranks went back to the state after `iteration`: what is newer belongs to a history given up."""
        self.kept = {key: s for key, s in self.kept.items() if key[0] <= iteration}
        self._prints = tuple(i for i in self._prints if i <= iteration)

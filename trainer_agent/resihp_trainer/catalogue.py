"""What the members of an epoch can bring the state back from, and what all of them conclude from it.

Exchanged only when the holders that are left do not have all of the newest state (or when a job resumes): then each
rank tells which shards it holds or keeps copies of, and which checkpoints it can read. `choose` is a pure function of
the catalogues, which are the same on every rank after the exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import torch

from resihp_messages import pack, unpack
from resihp_messages.ids import StateSource
from resihp_plan import Layout, ModelSpec, ParallelPlan, Transfers, layout, transfers
from resihp_trainer.comm.port import Group
from resihp_trainer.join import Applied


class StateGone(Exception):
    """Nothing that the members have makes up a complete state; the text is for the user. All conclude the same."""


@dataclass(frozen=True)
class Copies:
    """Shards of one iteration in one layout that a rank holds: its own live ones, or its part of a snapshot."""

    plan: ParallelPlan
    applied: Applied
    ranks: tuple[int, ...]
    """Whose shards."""
    is_live: bool


@dataclass(frozen=True)
class Catalogue:
    """Of one rank."""

    reached: int
    """Newest iteration that it committed, also if it was given up since and not made again yet."""
    copies: tuple[Copies, ...] = ()
    checkpoints: tuple[int, ...] = ()
    """Iterations of complete checkpoints that it can read."""
    damaged: tuple[tuple[int, str], ...] = ()
    """Iterations of checkpoints that it found unusable, and why."""

    def pack(self) -> bytes:
        """MessagePack, any length."""
        copies = [[c.plan.to_dict(), asdict(c.applied), list(c.ranks), c.is_live] for c in self.copies]
        return pack([self.reached, copies, list(self.checkpoints), [list(d) for d in self.damaged]])

    @classmethod
    def unpack(cls, raw: bytes) -> Catalogue:
        """Inverse of `pack`."""
        data: Any = unpack(raw)
        reached, copies, checkpoints, damaged = data
        found = tuple(
            Copies(ParallelPlan.from_dict(p), Applied(**a), tuple(ranks), live) for p, a, ranks, live in copies
        )
        return cls(reached, found, tuple(checkpoints), tuple((i, text) for i, text in damaged))


@dataclass(frozen=True)
class Recovery:
    """Where all members go on: after `iteration`, of which memory (`base`, `moves`) or disk has the state."""

    iteration: int
    lost: int
    """Committed iterations that are given up."""
    source: StateSource
    applied: Applied | None = None
    """Of memory; a checkpoint's is in its manifest."""
    base: Layout | None = None
    moves: Transfers | None = None


def exchange(world: Group, mine: Catalogue, rank: int) -> dict[int, Catalogue]:
    """Everybody's catalogue. Raises what `Pending.wait` raises."""
    raw = mine.pack()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in world.ranks]
    world.all_gather(sizes, torch.tensor([len(raw)])).wait()
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    parts = [torch.empty_like(padded) for _ in world.ranks]
    world.all_gather(parts, padded).wait()
    return {
        r: Catalogue.unpack(part[: int(size)].numpy().tobytes())
        for r, part, size in zip(world.ranks, parts, sizes, strict=True)
    }


def choose(
    catalogues: Mapping[int, Catalogue],
    target: Layout,
    model: ModelSpec,
    node_of: Mapping[int, str] | None,
    *,
    what: str,
    resume: bool = False,
    newest: int | None = None,
) -> Recovery:
    """The newest complete state: in memory, else on disk. `what`: why it is asked for, for the text of `StateGone`.
    `resume`: the job begins; then a damaged checkpoint is not passed over for an older one. `newest`: only a state that
    is not newer than this iteration, if there is any."""
    if newest is not None:
        try:
            return choose(_not_newer(catalogues, newest), target, model, node_of, what=what)
        except StateGone:
            return choose(catalogues, target, model, node_of, what=what)
    damaged = sorted({d for c in catalogues.values() for d in c.damaged}, reverse=True)
    reached = max(c.reached for c in catalogues.values())
    notes = []
    disk = _newest_checkpoint(catalogues, None if resume else reached)
    for (iteration, _, _), found in sorted(_by_state(catalogues).items(), reverse=True):
        if disk is not None and disk > iteration:
            break
        base = layout(found.plan, model)
        moves = transfers(base, target, alive=(), copies=found.holders, node_of=node_of)
        if not moves.missing:
            source: StateSource = "live" if found.is_live else "snapshot"
            return Recovery(iteration, max(0, reached - iteration), source, found.applied, base, moves)
        notes.append(f"{len(moves.missing)} slices of iteration {iteration} are lost")
    if resume and damaged and damaged[0][0] > (disk or 0):
        raise StateGone(f"{what}; {damaged[0][1]}; remove its folder to use an older one")
    if disk is not None:
        return Recovery(disk, max(0, reached - disk), "checkpoint")
    notes += [text for _, text in damaged]
    raise StateGone(f"{what}; no complete snapshot and no checkpoint" + "".join(f"; {n}" for n in notes[:4]))


def _not_newer(catalogues: Mapping[int, Catalogue], newest: int) -> dict[int, Catalogue]:
    return {
        rank: replace(
            c,
            copies=tuple(copy for copy in c.copies if copy.applied.iteration <= newest),
            checkpoints=tuple(i for i in c.checkpoints if i <= newest),
        )
        for rank, c in catalogues.items()
    }


@dataclass
class _State:
    plan: ParallelPlan
    applied: Applied
    holders: dict[int, set[int]]
    is_live: bool


def _by_state(catalogues: Mapping[int, Catalogue]) -> dict[tuple[int, int, str], _State]:
    """(iteration, epoch of the layout, digest of its plan) -> who holds whose shards of it."""
    found: dict[tuple[int, int, str], _State] = {}
    for holder, catalogue in sorted(catalogues.items()):
        for c in catalogue.copies:
            key = c.applied.iteration, c.plan.epoch, c.plan.digest
            state = found.setdefault(key, _State(c.plan, c.applied, {}, True))
            state.is_live &= c.is_live
            for rank in c.ranks:
                state.holders.setdefault(rank, set()).add(holder)
    return found


def _newest_checkpoint(catalogues: Mapping[int, Catalogue], limit: int | None) -> int | None:
    """That all can read and nobody found damaged; not beyond iteration `limit`."""
    common = reduce(set.intersection, (set(c.checkpoints) for c in catalogues.values()))
    damaged = {iteration for c in catalogues.values() for iteration, _ in c.damaged}
    return max((i for i in common - damaged if limit is None or i <= limit), default=None)

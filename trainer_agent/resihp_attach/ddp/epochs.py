"""The group of the ranks that are alive, and what they agree on when it changes. Mirrors docs/protocol.md in the small:
state is replicated, so nothing moves; a rank that missed the outcome of a vote may apply the step after all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from resihp_attach.ddp.errors import StateDiverged
from resihp_attach.ddp.line import Order
from resihp_attach.ddp.ties import Ties
from resihp_trainer.comm import CommunicationFailed, EpochAborted, EpochGroups, Group

WORLD = "world"


@dataclass(frozen=True)
class World:
    """A `GroupSpecification` of all members."""

    ranks: tuple[int, ...]
    name: str = WORLD
    kind: str = WORLD


@dataclass(frozen=True)
class Standing:
    """What a rank brings into an epoch."""

    first: int
    """Steps that were committed when the job began."""
    committed: int
    """Steps that it has applied."""
    has_voted: bool
    """It voted for step `committed + 1`, so its gradients of that step are complete."""
    parameters: Sequence[Tensor]
    buffers: Sequence[Tensor]


class Epochs:
    """Used by the training thread; aborts come from the line's thread, through the communicator."""

    def __init__(self, ties: Ties) -> None:
        self._rank, self._communicator, self._launcher = ties.rank, ties.communicator, ties.launcher
        self._groups: EpochGroups | None = None
        self.order = Order(0, ())

    @property
    def group(self) -> Group:
        assert self._groups is not None
        return self._groups[WORLD]

    @property
    def is_up(self) -> bool:
        """Whether the ranks of the epoch are, as far as is known, all alive."""
        if self._groups is None:
            return False
        try:
            self._communicator.check(self.order.epoch)
        except EpochAborted:
            return False
        return True

    def give_up(self, error: CommunicationFailed | EpochAborted) -> None:
        """Leave the epoch. If nobody has aborted it yet, that is done here, and the launcher is told."""
        if isinstance(error, CommunicationFailed):
            self._communicator.abort(self.order.epoch)
            self._launcher.say("broken", epoch=self.order.epoch, error=str(error)[:500])
        if self._groups is not None:
            self._communicator.retire(self._groups)
            self._groups = None

    def rejoin(self, standing: Standing) -> int:
        """Enter the newest epoch, whatever became of the last one; returns how many steps are committed there, which is
        `standing.committed` or, for a rank that has voted, one more. Raises `LauncherGone`, `StateDiverged`."""
        while True:
            self.give_up(EpochAborted(self.order.epoch))
            self.order = order = self._launcher.next_order(self.order.epoch)
            try:
                self._groups = self._communicator.build(
                    order.epoch, (World(order.members),), self._rank, order.store, order.namespace
                )
                return self._settle(standing)
            except (EpochAborted, CommunicationFailed) as error:
                self.give_up(error)

    def _settle(self, standing: Standing) -> int:
        """Compare what everybody has. Before the first step, the parameters of the first member become everybody's."""
        shapes = zlib.crc32(repr([t.shape for t in (*standing.parameters, *standing.buffers)]).encode())
        header = [shapes, standing.committed, standing.has_voted, digest(standing.parameters)]
        mine = torch.tensor(header, dtype=torch.int64)
        everybody = [torch.empty_like(mine) for _ in self.order.members]
        self.group.all_gather(everybody, mine).wait()
        if any(int(theirs[0]) != shapes for theirs in everybody):
            raise StateDiverged("the shapes of the parameters or buffers differ between ranks")
        found = [(int(committed), bool(voted), int(bits)) for _, committed, voted, bits in everybody]
        newest = conclude(found, self.order.members, standing.first)
        if newest == standing.first:
            self._share(standing)
        return newest

    def _share(self, standing: Standing) -> None:
        for tensor in (*standing.parameters, *standing.buffers):
            copy = tensor.detach().contiguous().clone()  # the operation's own: an abort may leave it half written
            self.group.broadcast(copy, self.order.members[0]).wait()
            with torch.no_grad():
                tensor.copy_(copy)


def digest(tensors: Sequence[Tensor]) -> int:
    """Of all bits, in order."""
    value = 0
    for tensor in tensors:
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        value = zlib.crc32(raw.numpy().data, value)
    return value


def conclude(standings: Sequence[tuple[int, bool, int]], members: Sequence[int], first: int = 0) -> int:
    """Committed steps, vote and digest of every member -> the newest committed step. Raises `StateDiverged`.

    >>> conclude([(7, True, 1), (8, False, 2), (8, False, 2)], (0, 1, 3))  # rank 0 applies step 8 after all
    8
    """
    newest = max(committed for committed, _, _ in standings)
    behind = [m for m, (c, v, _) in zip(members, standings, strict=True) if c < newest and not (v and c == newest - 1)]
    if behind:
        raise StateDiverged(f"ranks {behind} are behind step {newest} and have no complete gradients of it")
    found = {bits for committed, _, bits in standings if committed == newest}
    if len(found) > 1 and newest > first:
        raise StateDiverged(f"parameters after step {newest} differ between ranks: digests {sorted(found)}")
    return newest

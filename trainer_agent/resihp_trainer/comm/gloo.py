"""A gloo process group and its running operations.

What gloo needs (measured with torch 2.13): a wait must be cut into slices, because shutting the sockets alone now and
then loses a wake-up inside gloo; `Work.wait(50 ms)` of a collective raises "Operation timed out!" and is otherwise
harmless (for send and receive it is not: hence broadcasts in two-rank groups). The destructor of a group with a stuck
operation blocks until gloo's own timeout, so the last references must be dropped in a reaper thread: a `GlooGroup` can
be emptied (`surrender`), whoever still refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from resihp_trainer.comm.aborts import AbortFlag
from resihp_trainer.comm.collectives import BackendCollectives
from resihp_trainer.comm.direct import Followed, is_small, reduce_into, spread_into
from resihp_trainer.comm.operand import require_contiguous, require_gatherable
from resihp_trainer.comm.port import CommunicationFailed, Pending, ReduceOp, Ticker
from resihp_trainer.comm.waits import WaitCounter

SLICE = timedelta(milliseconds=50)


@dataclass(frozen=True)
class Surroundings:
    """What the groups of a process share."""

    aborts: AbortFlag
    page: Ticker
    waits: WaitCounter
    clock: Callable[[], float]


class GlooGroup(BackendCollectives):
    """A `Group` of two or more ranks on a `ProcessGroupGloo`."""

    def __init__(
        self, name: str, kind: str, ranks: tuple[int, ...], epoch: int, backend: Any, around: Surroundings
    ) -> None:
        self.name = name
        self.kind = kind
        self.ranks = ranks
        self.epoch = epoch
        self.around = around
        self._backend = backend
        self._own: int = backend.rank()
        self._running: set[GlooPending] = set()

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        if not is_small(tensor, len(self.ranks)):
            return super().all_reduce(tensor, op)
        require_contiguous(tensor)
        received, exchange = self._send_to_all(tensor)
        return Followed(exchange, partial(reduce_into, tensor, received, self._own, op))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Pending:
        if not is_small(tensor, len(self.ranks)):
            return super().all_gather(outputs, tensor)
        require_gatherable(outputs, tensor, len(self.ranks))
        received, exchange = self._send_to_all(tensor)
        return Followed(exchange, partial(spread_into, outputs, tensor, received, self._own))

    def _send_to_all(self, tensor: Tensor) -> tuple[Tensor, Pending]:
        """What the others send meanwhile, in their order."""
        sent = tensor.detach().view(-1).repeat(len(self.ranks) - 1)
        received = torch.empty_like(sent)
        splits = [0 if index == self._own else tensor.numel() for index in range(len(self.ranks))]
        return received, self.all_to_all(received, sent, splits, splits)

    def _start(self, operation: str, *operands: Any) -> Pending:
        self.around.aborts.check(self.epoch)
        if self._backend is None:
            raise ValueError(f"group {self.name} of epoch {self.epoch} is retired")
        pending = GlooPending(self, getattr(self._backend, operation)(*operands), operands)
        self._running.add(pending)
        return pending

    def finished(self, pending: GlooPending) -> None:
        self._running.discard(pending)

    def surrender(self, box: list[object]) -> None:
        """Move every reference into C++ to `box`: the backend, and the unfinished operations with their tensors."""
        for pending in self._running:
            pending.surrender(box)
        self._running.clear()
        box.append(self._backend)
        self._backend = None


class GlooPending:
    """A running operation; keeps its tensors alive, because gloo's threads write to them."""

    def __init__(self, group: GlooGroup, work: Any, operands: tuple[Any, ...]) -> None:
        self._group = group
        self._work = work
        self._operands: tuple[Any, ...] | None = operands
        self._succeeded = False

    def wait(self) -> None:
        if self._succeeded:
            return
        around, kind = self._group.around, self._group.kind
        started_s = around.clock()
        try:
            while not self._ended():
                around.page.tick()
        finally:
            around.waits.add(kind, around.clock() - started_s)
        self._succeeded = True
        self._work = self._operands = None
        self._group.finished(self)

    def is_done(self) -> bool:
        if self._succeeded:
            return True
        self._group.around.aborts.check(self._group.epoch)
        if self._work is not None and not self._work.is_completed():
            return False
        self.wait()  # at once: with the result, or with the error
        return True

    def _ended(self) -> bool:
        """One slice. True if the operation succeeded; raises if it failed or the epoch was aborted."""
        group = self._group
        group.around.aborts.check(group.epoch)
        if self._work is None:
            raise ValueError(f"group {group.name} of epoch {group.epoch} is retired")
        error = _wait_slice(self._work)
        if error is None:
            return True
        # Raised out here, not in an except block: a chained traceback would keep the operation alive.
        group.around.aborts.check(group.epoch)
        if error == _UNFINISHED:
            return False
        raise CommunicationFailed(group.name, error)

    def surrender(self, box: list[object]) -> None:
        box += [self._work, self._operands]
        self._work = self._operands = None


_UNFINISHED = "Operation timed out!"


def _wait_slice(work: Any) -> str | None:
    """None: done. `_UNFINISHED`: still running. Else the backend's error.

    A slice that ran out is told from an error by the state of the operation as well as by the text: an operation that
    is not completed has not failed.
    """
    try:
        work.wait(SLICE)
    except RuntimeError as error:
        text = str(error)
        return text if work.is_completed() and _UNFINISHED not in text else _UNFINISHED
    return None

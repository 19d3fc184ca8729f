"""A NCCL process group and its running operations.

**Never run on a GPU so far**: checked against a fake in tests/unit/trainer_comm/test_nccl.py.

What differs from gloo: `wait` puts the current stream behind the operation and returns, the host goes on; so an error
or an abort is met by a later operation, at the latest by the vote, which runs on gloo and checks the abort flag. A
result that an aborted operation left on the device can therefore be read, but never be committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from resihp_trainer.comm.collectives import BackendCollectives
from resihp_trainer.comm.gloo import Surroundings
from resihp_trainer.comm.port import CommunicationFailed, Pending
from resihp_trainer.comm.streams import StreamWaits

Factory = Callable[[Any, int, int, float], Any]
"""(store, torch rank, size, timeout in seconds) -> a `ProcessGroupNCCL` that is not connected yet."""


def nccl_backend(store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """torch's backend; construction and aborts do not block (`blocking = 0`). RuntimeError in builds without NCCL."""
    backend = getattr(dist, "ProcessGroupNCCL", None)
    if backend is None:
        raise RuntimeError("this build of torch has no NCCL")
    options = backend.Options()
    options.config.blocking = 0
    options._timeout = timedelta(seconds=timeout_s)
    return backend(store, rank, size, options)


@dataclass(frozen=True)
class NcclSurroundings:
    """What the NCCL groups of a process share beyond those of gloo."""

    host: Surroundings
    streams: StreamWaits


class NcclGroup(BackendCollectives):
    """A `Group` of two or more ranks on a `ProcessGroupNCCL`; tensors are on this process's device."""

    def __init__(
        self, name: str, kind: str, ranks: tuple[int, ...], epoch: int, backend: Any, around: NcclSurroundings
    ) -> None:
        self.name = name
        self.kind = kind
        self.ranks = ranks
        self.epoch = epoch
        self.around = around
        self.backend = backend
        self._running: set[NcclPending] = set()

    def _start(self, operation: str, *operands: Any) -> Pending:
        self.around.host.aborts.check(self.epoch)
        if self.backend is None:
            raise ValueError(f"group {self.name} of epoch {self.epoch} is retired")
        error = ""
        try:
            work = getattr(self.backend, operation)(*operands)
        except RuntimeError as caught:
            error = str(caught)
        else:
            pending = NcclPending(self, work, operands)
            self._running.add(pending)
            return pending
        self.around.host.aborts.check(self.epoch)  # the error of an aborted communicator is its abort
        raise CommunicationFailed(self.name, error)

    def finished(self, pending: NcclPending) -> None:
        self._running.discard(pending)

    def surrender(self, box: list[object]) -> None:
        """Move every reference into C++ to `box`: the backend, and the unfinished operations with their tensors."""
        for pending in self._running:
            pending.surrender(box)
        self._running.clear()
        box.append(self.backend)
        self.backend = None


class NcclPending:
    """An operation on the communication stream; keeps its tensors until the current stream is behind it."""

    def __init__(self, group: NcclGroup, work: Any, operands: tuple[Any, ...]) -> None:
        self._group = group
        self._work = work
        self._operands: tuple[Any, ...] | None = operands
        self._succeeded = False

    def wait(self) -> None:
        if self._succeeded:
            return
        group, host = self._group, self._group.around.host
        host.aborts.check(group.epoch)
        if self._work is None:
            raise ValueError(f"group {group.name} of epoch {group.epoch} is retired")
        host.page.tick()
        error = ""
        try:
            group.around.streams.around(group.kind, self._work.wait)
        except RuntimeError as caught:
            error = str(caught)
        host.aborts.check(group.epoch)
        if error:
            raise CommunicationFailed(group.name, error)
        self._succeeded = True
        self._work = self._operands = None
        group.finished(self)

    def is_done(self) -> bool:
        if self._succeeded:
            return True
        self._group.around.host.aborts.check(self._group.epoch)
        if self._work is not None and not self._work.is_completed():
            return False
        self.wait()
        return True

    def surrender(self, box: list[object]) -> None:
        box += [self._work, self._operands]
        self._work = self._operands = None

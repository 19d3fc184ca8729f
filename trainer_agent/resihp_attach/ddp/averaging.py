"""DDP's gradients, averaged over a group that may break at any time: a communication hook that never raises.

DDP's own group has one member, this rank, so that DDP itself waits for nobody. For every bucket the hook starts an
all-reduce of a copy; when the backward pass is over (an autograd callback, which runs before DDP's own) they are waited
for, and DDP gets the averages. After a loss it gets its own gradients back, so that the pass ends in order; the step is
given up where that harms nothing: in the optimizer's step, or in the next forward pass.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore  # typed here; `torch.distributed` re-exports it
from torch.futures import Future

from resihp_trainer.comm import CommunicationFailed, EpochAborted, Group, Pending


def solo_group() -> dist.ProcessGroup:
    """A process group of this process alone, in which nothing waits."""
    store = HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    gloo: Any = dist.ProcessGroupGloo(store, 0, 1)  # type: ignore[call-arg]  # the timeout has a default
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return group


class Averaging:
    """The hook of one DDP module, and what became of the newest backward pass."""

    def __init__(self, group: Callable[[], Group]) -> None:
        self._group = group
        self._running: list[tuple[Tensor, Future[Any], Tensor, Pending | None]] = []
        self.failure: EpochAborted | CommunicationFailed | None = None
        """Why gradients of this step are not averages."""
        self.order = 0
        """Checksum of what was in which bucket: sums are meaningless unless it is equal on all ranks."""

    def begin(self) -> None:
        """A new step, or the same one again."""
        self.failure, self.order = None, 0

    def hook(self, bucket: Any) -> Future[Any]:
        """A bucket of this rank's gradients is complete; its average will be in the future."""
        own: Tensor = bucket.buffer()
        sizes = (bucket.index(), *(p.numel() for p in bucket.parameters()))
        self.order = zlib.crc32(repr(sizes).encode(), self.order)
        if not self._running:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        future: Future[Any] = Future()
        shared, pending = own.clone(), None
        if self.failure is None:
            try:
                pending = self._group().all_reduce(shared)
            except (EpochAborted, CommunicationFailed) as error:
                self._failed(error)
        self._running.append((own, future, shared, pending))
        return future

    def _finish(self) -> None:
        running, self._running = self._running, []
        for own, future, shared, pending in running:
            if self.failure is None and pending is not None:
                try:
                    pending.wait()
                    future.set_result(shared.div_(len(self._group().ranks)))
                    continue
                except (EpochAborted, CommunicationFailed) as error:
                    self._failed(error)
            future.set_result(own)

    def _failed(self, error: EpochAborted | CommunicationFailed) -> None:
        error.__traceback__ = None  # its frames hold operations of the group
        self.failure = error

"""Process groups over NCCL for what GPUs exchange, over gloo for what hosts do; one set of both per epoch.

**Never run on a GPU so far**: checked against a fake in tests/unit/trainer_comm/test_nccl.py.

Tensor-parallel, pipeline and gradient groups carry device tensors over NCCL; the world group (headers, votes, moved
state) and whatever else hosts exchange stays on gloo. Every communicator is created on its own from the epoch's store,
never split from another: an abort of a parent does not reach its children.

An abort ends all communicators of the epoch inside one NCCL group call, in a thread of its own: one after the other
they can wait for each other (pytorch issue 119797), and the watcher must not wait at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore

from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.comm.epoch import EpochRecord
from resihp_trainer.comm.nccl import Factory, NcclGroup, NcclSurroundings, nccl_backend
from resihp_trainer.comm.port import GroupSpecification, Ticker, WaitSeconds
from resihp_trainer.comm.streams import Mark, StreamWaits, cuda_mark

DEVICE_KINDS = frozenset({"tp", "edge", "bucket"})
"""Kinds of groups whose tensors are on the device."""

_POLL_S = 0.0005
_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the default ends the process at an error
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # its monitor ends the process that is busy aborting
}


class NcclCommunicator(GlooCommunicator):
    """A `Communicator` for processes with one GPU each. `device` is that GPU."""

    def __init__(
        self,
        *,
        host: str,
        page: Ticker,
        device: torch.device,
        timeout_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        factory: Factory = nccl_backend,
        mark: Mark = cuda_mark,
    ) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        super().__init__(host=host, page=page, timeout_s=timeout_s, clock=clock)
        self._gpu = device
        self._factory, self._mark = factory, mark
        self._streams = StreamWaits(mark, self._waits.add)
        self._nccl_around = NcclSurroundings(self._around, self._streams)

    def abort(self, epoch: int) -> None:
        super().abort(epoch)  # the flag first: whatever an aborted operation leaves behind is not believed
        with self._lock:
            doomed = [g.backend for r in self._epochs.values() if r.epoch <= epoch for g in r.device_groups]
        alive = [backend for backend in doomed if backend is not None]
        if alive:
            Thread(target=_abort_together, args=(alive,), name=f"abort-e{epoch}", daemon=True).start()

    def settle(self, epoch: int) -> None:
        reached = self._mark()
        while not reached.query():
            self._around.page.tick()
            self._aborts.check(epoch)
            time.sleep(_POLL_S)
        self._aborts.check(epoch)

    @property
    def streams(self) -> StreamWaits:
        """What times the device."""
        return self._streams

    def take_waits(self) -> WaitSeconds:
        """Seconds for which the compute stream, or the host, stood still; those of the device with a delay."""
        self._streams.harvest()
        return super().take_waits()

    def _construct_group(self, record: EpochRecord, spec: GroupSpecification, rank: int) -> None:
        if spec.kind not in DEVICE_KINDS:
            super()._construct_group(record, spec, rank)
            return
        store = record.meet(lambda: self._aborts.check(record.epoch), self._timeout_s)
        prefixed = PrefixStore(f"{record.namespace}/e{record.epoch}/{spec.name}", store)
        backend = self._factory(prefixed, spec.ranks.index(rank), len(spec.ranks), self._timeout_s)
        group = NcclGroup(spec.name, spec.kind, tuple(spec.ranks), record.epoch, backend, self._nccl_around)
        with self._lock:  # either an abort finds the backend, or this finds the abort
            self._aborts.check(record.epoch)
            record.groups[spec.name] = group
        backend.eager_connect_single_device(self._gpu)


def _abort_together(backends: Sequence[Any]) -> None:
    """End all of them inside one group call."""
    backends[0]._group_start()
    try:
        for backend in backends:
            backend.abort()
    finally:
        backends[0]._group_end()

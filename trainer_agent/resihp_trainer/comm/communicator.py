"""Process groups over gloo, one set per epoch: built on a store, aborted from any thread, dropped by a reaper.

There is no default process group and nothing is shared between epochs but one gloo device (one listener, one event
thread). Construction runs in a thread of its own, which the training thread watches in slices: a constructor of gloo
can block in the store, where the abort flag reaches it, but also while it waits for a peer's connection, where nothing
does. In that case the thread is left behind and ends by gloo's timeout; the training thread is free at once.

Locking: `_lock` serialises "a group's sockets become known" with "an epoch is aborted". So either the abort finds the
sockets and shuts them, or the builder finds the abort and gives up; there is no third order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from threading import Lock
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from resihp_trainer.comm.aborts import AbortFlag
from resihp_trainer.comm.epoch import EpochRecord
from resihp_trainer.comm.gloo import GlooGroup, Surroundings
from resihp_trainer.comm.port import CommunicationFailed, EpochGroups, GroupSpecification, Ticker, WaitSeconds
from resihp_trainer.comm.sockets import open_sockets, opened_since
from resihp_trainer.comm.solo import SoloGroup
from resihp_trainer.comm.streams import StreamWaits
from resihp_trainer.comm.waits import AXIS_OF_KIND, WaitCounter

SLICE_S = 0.05
GLOO_THREADS = 1
"""Worker threads of a group: its operations are issued in one order everywhere, so one suffices."""


class GlooCommunicator:
    """A `Communicator` on gloo. Create it in the worker, never before a fork: the device owns a thread.

    `host` is the address of this node that other ranks can reach (gloo listens there on a port chosen by the kernel);
    `timeout_s` is gloo's own timeout, a backstop that bounds leaks.
    """

    def __init__(
        self, *, host: str, page: Ticker, timeout_s: float = 120.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._waits = WaitCounter()
        self._aborts = AbortFlag()
        self._around = Surroundings(self._aborts, page, self._waits, clock)
        self._device = dist.ProcessGroupGloo.create_device(hostname=host)
        self._lock = Lock()
        self._epochs: dict[int, EpochRecord] = {}
        self._newest = -1

    def build(
        self, epoch: int, specs: Sequence[GroupSpecification], rank: int, store_address: str, namespace: str = ""
    ) -> EpochGroups:
        begun = self.begin(epoch, specs, rank, store_address, namespace)
        try:
            return self.complete(begun)
        except BaseException:
            self.retire(begun)
            raise

    def begin(
        self, epoch: int, specs: Sequence[GroupSpecification], rank: int, store_address: str, namespace: str = ""
    ) -> EpochGroups:
        mine = _own_specs(specs, rank)
        self._aborts.check(epoch)
        record = EpochRecord(epoch, store_address, namespace)
        with self._lock:
            if epoch <= self._newest:
                raise ValueError(f"epoch {epoch} is not newer than {self._newest}")
            self._newest = epoch
            self._epochs[epoch] = record
        record.start(lambda: self._construct(record, mine, rank))
        try:
            self._await(record, record.begun)
        except BaseException:
            self._drop(record)
            raise
        return EpochGroups(epoch, rank, {n: record.groups[n] for n in (s.name for s in mine[:1]) if n in record.groups})

    def complete(self, groups: EpochGroups) -> EpochGroups:
        self._aborts.check(groups.epoch)
        record = self._epochs.get(groups.epoch)
        if record is None:
            raise ValueError(f"epoch {groups.epoch} is retired")
        self._await(record, record.built)
        return EpochGroups(groups.epoch, groups.rank, dict(record.groups))

    def _await(self, record: EpochRecord, done: Future[None]) -> None:
        while not _is_over(done, SLICE_S):
            self._around.page.tick()
            self._aborts.check(record.epoch)
        self._aborts.check(record.epoch)
        done.result()

    def abort(self, epoch: int) -> None:
        with self._lock:
            self._aborts.raise_to(epoch)
            for record in self._epochs.values():
                if record.epoch <= epoch:
                    # Only the newest record's half-built group can be told from other sockets, and only it can be
                    # under construction: an older one was left by the training thread, so its sockets are shut.
                    record.shut(half_built=record.epoch == self._newest)

    def check(self, epoch: int) -> None:
        self._aborts.check(epoch)

    def settle(self, epoch: int) -> None:
        return  # a wait of gloo returns when the operation is done

    def retire(self, groups: EpochGroups) -> None:
        record = self._epochs.get(groups.epoch)
        if record is not None:
            self._drop(record)

    @property
    def streams(self) -> StreamWaits | None:
        return None

    def take_waits(self) -> WaitSeconds:
        return self._waits.take()

    def _drop(self, record: EpochRecord) -> None:
        with self._lock:
            self._epochs.pop(record.epoch, None)
        record.reap()

    # --- in the builder thread ------------------------------------------------------------------------------------

    def _construct(self, record: EpochRecord, specs: Sequence[GroupSpecification], rank: int) -> None:
        """Build the groups of `record` one after the other. Raises `EpochAborted` or `CommunicationFailed`."""
        for spec in specs:
            if record.groups and not record.begun.done():
                record.begun.set_result(None)
            self._aborts.check(record.epoch)
            if len(spec.ranks) == 1:
                record.groups[spec.name] = SoloGroup(spec.name, rank, record.epoch, self._aborts)
                continue
            try:
                self._construct_group(record, spec, rank)
            except (RuntimeError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                continue
            self._aborts.check(record.epoch)  # the error of an aborted construction is its abort
            raise CommunicationFailed(spec.name, failure)

    def _construct_group(self, record: EpochRecord, spec: GroupSpecification, rank: int) -> None:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stub calls it Options
        options._devices = [self._device]
        options._threads = GLOO_THREADS
        options._timeout = timedelta(seconds=self._timeout_s)
        store = record.meet(lambda: self._aborts.check(record.epoch), self._timeout_s)
        store.expect(len(spec.ranks))
        record.before = open_sockets()
        prefixed = PrefixStore(f"{record.namespace}/e{record.epoch}/{spec.name}", store)
        # No local name for the backend: the traceback of an abort would hold it, and its destructor may block.
        record.groups[spec.name] = GlooGroup(
            spec.name,
            spec.kind,
            tuple(spec.ranks),
            record.epoch,
            dist.ProcessGroupGloo(prefixed, spec.ranks.index(rank), len(spec.ranks), options),
            self._around,
        )
        with self._lock:
            # If the epoch is aborted, a newer one may be under construction, whose sockets must not be taken for ours;
            # then the reaper drops the group.
            self._aborts.check(record.epoch)
            record.sockets.update(opened_since(record.before))
            record.before = None


def _is_over(done: Future[None], timeout_s: float) -> bool:
    """Whether it ended, well or not."""
    return bool(wait([done], timeout_s).done)


def _own_specs(specs: Sequence[GroupSpecification], rank: int) -> list[GroupSpecification]:
    """The groups that contain `rank`. ValueError for duplicate names or ranks, or an unknown kind."""
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ValueError(f"group names are not unique: {sorted(n for n in set(names) if names.count(n) > 1)}")
    for spec in specs:
        if spec.kind not in AXIS_OF_KIND or not spec.ranks or len(set(spec.ranks)) != len(spec.ranks):
            raise ValueError(f"malformed group {spec.name}: kind {spec.kind}, ranks {spec.ranks}")
    return [spec for spec in specs if rank in spec.ranks]

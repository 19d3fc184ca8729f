"""A backend in the shape of torch's `ProcessGroupNCCL`, between threads of one process; and events without a device.

It meets its peers through the real store, as NCCL exchanges its ids, so construction can hang and be aborted.
Operations run when their work is waited for; an aborted backend fails them, as NCCL does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from torch import Tensor

from support.thread_groups import Exchange, ThreadGroup


@dataclass
class World:
    """What the fakes of one test share: exchanges by id, and what was called by which thread."""

    exchanges: dict[bytes, Exchange] = field(default_factory=dict)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    """(what, id of the backend, thread)."""

    def factory(self, store: Any, rank: int, size: int, timeout_s: float) -> FakeNccl:
        return FakeNccl(self, store, rank, size)


class FakeWork:
    def __init__(self, backend: FakeNccl, finish: Callable[[], None]) -> None:
        self._backend, self._finish = backend, finish

    def wait(self) -> bool:
        self._backend.check()
        self._finish()
        return True

    def is_completed(self) -> bool:
        return not self._backend.is_stuck


class FakeNccl:
    def __init__(self, world: World, store: Any, rank: int, size: int) -> None:
        self._world, self._store, self._rank, self._size = world, store, rank, size
        self._group: ThreadGroup | None = None
        self.is_aborted = False
        self.is_stuck = False

    def eager_connect_single_device(self, device: object) -> None:
        """Rank 0 makes an id, everybody fetches it."""
        if self._rank == 0:
            self._store.set("nccl id", f"{id(self)}")
        found = bytes(self._store.get("nccl id"))
        exchange = self._world.exchanges.setdefault(found, Exchange(tuple(range(self._size))))
        self._group = ThreadGroup("fake", exchange, self._rank)

    def allreduce(self, tensors: list[Tensor], options: Any) -> FakeWork:
        return self._started(lambda group: group.all_reduce(tensors[0]))

    def broadcast(self, tensors: list[Tensor], options: Any) -> FakeWork:
        return self._started(lambda group: group.broadcast(tensors[0], options.rootRank))

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor]) -> FakeWork:
        return self._started(lambda group: group.all_gather(outputs[0], tensors[0]))

    def alltoall_base(self, output: Tensor, input: Tensor, to: list[int], sizes: list[int]) -> FakeWork:
        return self._started(lambda group: group.all_to_all(output, input, to, sizes))

    def abort(self) -> None:
        self.is_aborted = True
        self._say("abort")

    def _group_start(self) -> None:
        self._say("start")

    def _group_end(self) -> None:
        self._say("end")

    def check(self) -> None:
        if self.is_aborted:
            raise RuntimeError("NCCL communicator was aborted")

    def _say(self, what: str) -> None:
        self._world.calls.append((what, id(self), get_ident()))

    def _started(self, start: Callable[[ThreadGroup], Any]) -> FakeWork:
        self.check()
        assert self._group is not None
        return FakeWork(self, start(self._group).wait)


@dataclass
class FakeDevice:
    """A device whose streams are `now` milliseconds far, and have reached what was marked up to `reached`."""

    now: float = 0.0
    reached: float = 0.0

    def mark(self) -> FakeEvent:
        self.now += 1.0
        return FakeEvent(self, self.now)


@dataclass
class FakeEvent:
    device: FakeDevice
    at: float

    def query(self) -> bool:
        return self.at <= self.device.reached

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.query()
        assert end_event.query()
        return end_event.at - self.at

"""The NCCL backend against a fake of it: what is asked of the backend, and when. No GPU takes part."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist

from resihp_plan.groups import GroupKind
from resihp_trainer.comm import CommunicationFailed, EpochAborted, EpochGroups, NcclCommunicator
from resihp_trainer.comm.communicator import GlooCommunicator
from resihp_trainer.comm.nccl import NcclGroup, nccl_backend
from resihp_trainer.comm.nccl_communicator import DEVICE_KINDS
from resihp_trainer.comm.streams import StreamWaits
from support.fake_nccl import FakeDevice, World
from support.thread_engines import store_address
from support.waiting import wait_for_blocking


@dataclass(frozen=True)
class Spec:
    name: str
    kind: str
    ranks: tuple[int, ...]


SPECS = (Spec("tp/0-1", "tp", (0, 1)), Spec("fwd/0-1", "edge", (0, 1)), Spec("bucket/0-1", "bucket", (0, 1)))


class Ticks:
    def __init__(self) -> None:
        self.count = 0

    def tick(self) -> None:
        self.count += 1


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    with store_address() as address:
        yield address


class Pair:
    """Two ranks with a communicator each."""

    def __init__(self, store: str, namespace: str) -> None:
        self.store, self.namespace = store, namespace
        self.world, self.device = World(), FakeDevice()
        self.ticks = Ticks()
        self.built: list[tuple[int, EpochGroups]] = []
        self.ranks = [
            NcclCommunicator(
                host="127.0.0.1",
                page=self.ticks,
                device=torch.device("cuda", rank),
                timeout_s=20.0,
                factory=self.world.factory,
                mark=self.device.mark,
            )
            for rank in (0, 1)
        ]

    def build(self, epoch: int, rank: int) -> EpochGroups:
        groups = self.ranks[rank].build(epoch, SPECS, rank, self.store, self.namespace)
        self.built.append((rank, groups))
        return groups

    def close(self) -> None:
        for rank, groups in self.built:
            self.ranks[rank].retire(groups)
        wait_for_blocking(lambda: not any(t.name.startswith(("reap", "build")) for t in threading.enumerate()), 10)

    def both(self, body: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return [f.result(30) for f in [pool.submit(body, rank) for rank in (0, 1)]]


@pytest.fixture
def pair(store: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(store, request.node.name)
    yield made
    made.close()


def test_operations_of_two_ranks(pair: Pair) -> None:
    built = pair.both(lambda rank: pair.build(1, rank))

    def body(rank: int) -> list[torch.Tensor]:
        tp = built[rank]["tp/0-1"]
        assert isinstance(tp, NcclGroup)
        total, sent = torch.full((3,), 1.0 + rank), torch.full((2,), 5.0 + rank)
        parts = [torch.zeros(1), torch.zeros(1)]
        dealt = torch.zeros(2)
        started = [
            tp.all_reduce(total),
            tp.broadcast(sent, 1),
            tp.all_gather(parts, torch.tensor([float(rank)])),
            tp.all_to_all(dealt, torch.tensor([10.0 * rank, 10.0 * rank + 1]), [1, 1], [1, 1]),
        ]
        for pending in started:
            pending.wait()
            pending.wait()  # the second time at once
            assert pending.is_done()
        return [total, sent, torch.cat(parts), dealt]

    first, second = pair.both(body)
    assert [t.tolist() for t in first] == [[3, 3, 3], [6, 6], [0, 1], [0, 10]]
    assert [t.tolist() for t in second] == [[3, 3, 3], [6, 6], [0, 1], [1, 11]]
    assert pair.ticks.count >= 8


def test_hosts_keep_to_gloo(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only groups whose tensors are on the device are NCCL's."""
    left: list[str] = []
    monkeypatch.setattr(GlooCommunicator, "_construct_group", lambda self, record, spec, rank: left.append(spec.name))
    specs = [Spec(kind, kind, (0, 1)) for kind in sorted(set(GroupKind) - DEVICE_KINDS)]
    for rank in (0, 1):
        groups = pair.ranks[rank].build(1, specs, rank, pair.store, pair.namespace)
        pair.built.append((rank, groups))
    assert sorted(left) == sorted(2 * [spec.name for spec in specs])


def test_an_abort_ends_all_communicators_together_and_the_next_epoch_is_built_anew(pair: Pair) -> None:
    built = pair.both(lambda rank: pair.build(1, rank))
    backends = [group.backend for group in built[0].values()]
    pending = built[0]["tp/0-1"].all_reduce(torch.ones(1))
    pair.ranks[0].abort(1)
    with pytest.raises(EpochAborted):  # at once, whether NCCL has come to it or not
        pending.wait()
    with pytest.raises(EpochAborted):
        built[0]["tp/0-1"].all_reduce(torch.ones(1))
    wait_for_blocking(lambda: any(what == "end" for what, _, _ in pair.world.calls), 10)
    assert [what for what, _, _ in pair.world.calls] == ["start", "abort", "abort", "abort", "end"]
    assert len({thread for _, _, thread in pair.world.calls}) == 1
    assert {name for what, name, _ in pair.world.calls if what == "abort"} == {id(b) for b in backends}
    pair.ranks[1].abort(1)
    for rank in (0, 1):
        pair.ranks[rank].retire(built[rank])
    again = pair.both(lambda rank: pair.build(2, rank))

    def reduce(rank: int) -> float:
        total = torch.ones(1)
        again[rank]["bucket/0-1"].all_reduce(total).wait()
        return float(total)

    assert pair.both(reduce) == [2.0, 2.0]
    assert not any(group.backend.is_aborted for groups in again for group in groups.values())


def test_construction_without_the_peer_is_left_at_an_abort(pair: Pair) -> None:
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(pair.build, 1, 1)  # rank 0, which has the id, does not come
        wait_for_blocking(lambda: pair.ticks.count > 1, 10)
        assert not building.done()
        before = time.monotonic()
        pair.ranks[1].abort(1)
        with pytest.raises(EpochAborted):
            building.result(10)
        assert time.monotonic() - before < 60


def test_an_error_is_a_failure_unless_the_epoch_is_aborted(pair: Pair) -> None:
    built = pair.both(lambda rank: pair.build(1, rank))
    group = built[0]["tp/0-1"]
    pending = group.all_reduce(torch.ones(1))
    group.backend.is_aborted = True  # by itself: a link broke
    with pytest.raises(CommunicationFailed, match="tp/0-1"):
        pending.wait()
    with pytest.raises(CommunicationFailed, match="tp/0-1"):
        group.all_reduce(torch.ones(1))
    pair.ranks[0].abort(1)
    with pytest.raises(EpochAborted):
        pending.wait()


def test_asking_does_not_wait(pair: Pair) -> None:
    built = pair.both(lambda rank: pair.build(1, rank))
    group = built[0]["tp/0-1"]
    group.backend.is_stuck = True
    pending = group.all_reduce(torch.ones(1))
    assert not pending.is_done()


def test_a_retired_epoch_is_dropped(pair: Pair) -> None:
    built = pair.both(lambda rank: pair.build(1, rank))
    backends = [weakref.ref(group.backend) for group in built[0].values()]
    group = built[0]["tp/0-1"]
    pair.ranks[0].retire(built[0])
    with pytest.raises(ValueError, match="is retired"):
        group.all_reduce(torch.ones(1))

    def gone() -> bool:
        gc.collect()
        return all(ref() is None for ref in backends)

    wait_for_blocking(gone, 10)


def test_waits_are_read_from_events_that_were_reached(pair: Pair) -> None:
    """Nobody waits for a device to know how long it waited: what is not over is counted with a later call."""
    built = pair.both(lambda rank: pair.build(1, rank))
    pair.both(lambda rank: built[rank]["tp/0-1"].all_reduce(torch.ones(1)).wait())
    assert pair.ranks[0].take_waits().tp == 0.0
    pair.device.reached = pair.device.now
    waits = [communicator.take_waits() for communicator in pair.ranks]
    assert sum(w.tp for w in waits) >= 0.002
    assert all(w.pp == w.dp == 0.0 for w in waits)
    assert pair.ranks[0].take_waits().tp == 0.0


def test_settling_shows_life_and_can_be_left(pair: Pair) -> None:
    """Before a number is read from the device: the read itself could be neither seen nor aborted."""
    mine = pair.ranks[0]
    with ThreadPoolExecutor(1) as pool:
        settling = pool.submit(mine.settle, 1)
        wait_for_blocking(lambda: pair.ticks.count > 3, 10)
        assert not settling.done()
        pair.device.reached = pair.device.now
        settling.result(10)
        settling = pool.submit(mine.settle, 2)
        mine.abort(2)
        with pytest.raises(EpochAborted):
            settling.result(10)


def test_stream_waits_keep_their_order() -> None:
    device, seen = FakeDevice(), []
    waits = StreamWaits(device.mark, lambda kind, seconds: seen.append((kind, seconds)))
    for kind in ("tp", "edge", "tp"):
        waits.around(kind, lambda: setattr(device, "now", device.now + 4.0))
    device.reached = 12.0  # the first wait is over, the second is not quite
    waits.harvest()
    assert seen == [("tp", 0.005), ("edge", 0.005)]
    device.reached = 100.0
    waits.harvest()
    assert seen[2:] == [("tp", 0.005)]


@pytest.mark.skipif(dist.is_nccl_available(), reason="this build has NCCL")
def test_a_build_without_nccl_says_so() -> None:
    with pytest.raises(RuntimeError, match="no NCCL"):
        nccl_backend(None, 0, 2, 1.0)

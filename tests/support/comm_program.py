"""The worker program of the communication tests: does what the test tells it, with the real communicator.

Frames on the link: 4 bytes length, MessagePack. A reader thread executes `abort` at once, as the watcher of a real
worker does; everything else is done in order by the main thread, and answered by one reply each.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch

from resihp_messages import pack, unpack
from resihp_messages.page import ProgressPage
from resihp_trainer.comm import CommunicationFailed, EpochAborted, EpochGroups, GlooCommunicator, Pending
from resihp_trainer.comm.rendezvous import AbortableStore, StoreClient

Frame = dict[str, Any]
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


@dataclass(frozen=True)
class Spec:
    name: str
    kind: str
    ranks: tuple[int, ...]


def send(link: socket.socket, message: Frame) -> None:
    raw = pack(message)
    link.sendall(struct.pack(">I", len(raw)) + raw)


def receive(link: socket.socket) -> Frame | None:
    """The next frame; None at the end of the stream."""
    header = _exactly(link, 4)
    if header is None:
        return None
    raw = _exactly(link, struct.unpack(">I", header)[0])
    return None if raw is None else unpack(raw)


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def strike(fault: str) -> None:
    os.kill(os.getpid(), SIGNALS[fault])


class Program:
    def __init__(self, rank: int, page: ProgressPage) -> None:
        self.rank = rank
        self.communicator = GlooCommunicator(host="127.0.0.1", page=page, timeout_s=60.0)
        self.epochs: dict[int, EpochGroups] = {}
        self.aborted_s: dict[int, float] = {}

    def abort(self, epoch: int) -> None:
        self.aborted_s.setdefault(epoch, time.monotonic())
        self.communicator.abort(epoch)

    def execute(self, order: Frame) -> Frame:
        """One order -> reply with `outcome` ok, aborted or failed."""
        reply: Frame = {"rank": self.rank, "pid": os.getpid(), "outcome": "ok", "value": None}
        try:
            reply["value"] = getattr(self, f"do_{order['do']}")(order)
        except EpochAborted as error:
            reply["outcome"] = "aborted"
            reply["left_after_s"] = time.monotonic() - self.aborted_s[error.epoch]
            self.leave(error.epoch)
        except CommunicationFailed as error:
            reply |= {"outcome": "failed", "group": error.group, "error": error.error}
            self.communicator.abort(order["epoch"])
            self.leave(order["epoch"])
        except ValueError as error:
            reply |= {"outcome": "refused", "error": str(error)}
        return reply

    def leave(self, epoch: int) -> None:
        groups = self.epochs.pop(epoch, None)
        if groups is not None:
            self.communicator.retire(groups)

    def do_build(self, order: Frame) -> list[str]:
        if order.get("strike"):
            _strike_in_construction(order["strike"], order["at"], order["times"])
        groups = self.communicator.build(order["epoch"], _specs(order), self.rank, order["address"])
        self.epochs[order["epoch"]] = groups
        return list(groups)

    def do_begin(self, order: Frame) -> list[str]:
        groups = self.communicator.begin(order["epoch"], _specs(order), self.rank, order["address"])
        self.epochs[order["epoch"]] = groups
        return list(groups)

    def do_complete(self, order: Frame) -> list[str]:
        self.epochs[order["epoch"]] = self.communicator.complete(self.epochs[order["epoch"]])
        return list(self.epochs[order["epoch"]])

    def do_operate(self, order: Frame) -> list[float]:
        """Start the operation (as often as asked), strike if told to, wait; value: what arrived."""
        if order["epoch"] not in self.epochs:
            raise ValueError(f"epoch {order['epoch']} was left")
        group = self.epochs[order["epoch"]][order["group"]]
        if order.get("strike") and order["at"] == "before":
            strike(order["strike"])
        started = [getattr(self, f"start_{order['op']}")(group, order) for _ in range(order.get("times", 1))]
        if order.get("strike"):
            strike(order["strike"])
        for pending, _ in started:
            pending.wait()
        return [float(v) for v in started[-1][1]]

    def do_train(self, order: Frame) -> int:
        """Iterations like those of training, for ever or until the fault at the asked-for operation (counted from 1):
        tensor-parallel reductions, pipeline edges with asynchronous sends, a bucket, a vote."""
        groups = self.epochs[order["epoch"]]
        edges = [name for name in groups if name.startswith("edge")]
        blocking = [name for name in groups if not name.startswith("edge")]
        done = 0
        while True:
            sends = []
            for name in (*blocking, *edges, "world"):
                group, tensor = groups[name], torch.full((2048,), float(self.rank))
                source = group.ranks[0]
                pending = group.broadcast(tensor, source) if name in edges else group.all_reduce(tensor)
                done += 1
                if done == order.get("at_operation"):
                    strike(order["strike"])
                if name in edges and source == self.rank:
                    sends.append(pending)
                    continue
                pending.wait()
                if float(tensor[0]) != (source if name in edges else sum(group.ranks)):
                    raise RuntimeError(f"wrong result in {name}: {float(tensor[0])}")
            for pending in sends:
                pending.wait()

    def start_all_reduce(self, group: Any, order: Frame) -> tuple[Pending, torch.Tensor]:
        tensor = torch.full((order.get("size", 1),), float(self.rank + 1), dtype=torch.float64)
        return group.all_reduce(tensor, order.get("reduce", "sum")), tensor[:1]

    def start_broadcast(self, group: Any, order: Frame) -> tuple[Pending, torch.Tensor]:
        tensor = torch.full((order.get("size", 1),), float(self.rank + 1))
        return group.broadcast(tensor, order["src"]), tensor[-1:]

    def start_all_gather(self, group: Any, order: Frame) -> tuple[Pending, torch.Tensor]:
        outputs = torch.zeros(len(group.ranks), order.get("size", 1))
        return group.all_gather(list(outputs), torch.full((order.get("size", 1),), float(self.rank + 1))), outputs[:, 0]

    def start_all_to_all(self, group: Any, order: Frame) -> tuple[Pending, torch.Tensor]:
        """Rank a sends (3a + b) mod `modulus` bytes of value 10a + b to rank b (zero for some pairs)."""
        modulus = order.get("modulus", 4)
        count = {(a, b): (3 * a + b) % modulus for a in group.ranks for b in group.ranks}
        sent = [count[self.rank, b] for b in group.ranks]
        received = [count[a, self.rank] for a in group.ranks]
        parts = [
            torch.full((n,), 10 * self.rank + b, dtype=torch.uint8) for n, b in zip(sent, group.ranks, strict=True)
        ]
        output = torch.zeros(sum(received), dtype=torch.uint8)
        return group.all_to_all(output, torch.cat(parts), received, sent), output[:64]

    def do_retire(self, order: Frame) -> None:
        self.communicator.retire(self.epochs[order["epoch"]])

    def do_forget(self, order: Frame) -> None:
        del self.epochs[order["epoch"]]

    def do_check(self, order: Frame) -> None:
        self.communicator.check(order["epoch"])

    def do_waits(self, order: Frame) -> list[float]:
        waits = self.communicator.take_waits()
        return [waits.tp, waits.pp, waits.dp]

    def do_counts(self, order: Frame) -> dict[str, Any]:
        """What could leak. Threads are the kernel's count, so those of gloo are included."""
        with open("/proc/self/statm") as statm:
            rss_pages = int(statm.read().split()[1])
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "python_threads": sorted(t.name for t in threading.enumerate()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "rss_bytes": rss_pages * os.sysconf("SC_PAGE_SIZE"),
        }

    def do_store_keys(self, order: Frame) -> int:
        return StoreClient(order["address"], timeout_s=5.0).count()


def _specs(order: Frame) -> list[Spec]:
    return [Spec(name, kind, tuple(ranks)) for name, kind, ranks in order["specs"]]


def _strike_in_construction(fault: str, at: str, times: int) -> None:
    """Strike in the `times`-th call of a method of the store: `set` (address not published) or `wait` (published)."""
    original = getattr(AbortableStore, at)
    calls = 0

    def struck(self: AbortableStore, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == times:
            strike(fault)
        return original(self, *arguments)

    setattr(AbortableStore, at, struck)


def main(rank: int, job: str, link: socket.socket, page: ProgressPage) -> int:
    program = Program(rank, page)
    orders: SimpleQueue[Frame] = SimpleQueue()

    def read() -> None:
        while (order := receive(link)) is not None:
            if order["do"] == "abort":
                program.abort(order["epoch"])
            else:
                orders.put(order)
        os._exit(0)

    threading.Thread(target=read, name="reader", daemon=True).start()
    while True:
        send(link, program.execute(orders.get()))

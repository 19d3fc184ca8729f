"""Eight (or so) ranks of `comm_program` and what a test does with them: order, abort, kill, replace."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from support import comm_program
from support.waiting import wait_for_blocking
from support.zygote_client import SpawnedWorker, ZygoteClient

Frame = dict[str, Any]
HANG_S = 120.0
"""Generous bound: a survivor that takes longer hangs."""


def world_specs(ranks: Sequence[int]) -> list[tuple[str, str, tuple[int, ...]]]:
    """A small job's groups over any ranks: world, neighbours as TP groups, edges across, halves as bucket groups."""
    ranks = tuple(ranks)
    pairs = [(a, b) for a, b in zip(ranks[::2], ranks[1::2], strict=False)]
    edges = [(a, b) for a, b in zip(ranks, ranks[2:], strict=False)]
    return [
        ("world", "world", ranks),
        *((f"tp/{a}-{b}", "tp", (a, b)) for a, b in pairs),
        *((f"edge/{a}>{b}", "edge", (a, b)) for a, b in edges),
        ("bucket/even", "bucket", ranks[::2]),
    ]


class Fleet:
    """Ranks `0..size-1`, one zygote, one store. Epoch numbers only grow, also across tests."""

    def __init__(self, folder: Path, size: int) -> None:
        self.zygote = ZygoteClient(folder, "support.comm_program:main")
        self.store_pid, self.address = self.zygote.store()
        self.workers: dict[int, SpawnedWorker] = {}
        self.epoch = 0
        self.size = size
        self.replenish()

    def replenish(self) -> None:
        """Fork the ranks that are missing."""
        for rank in range(self.size):
            if rank not in self.workers:
                self.workers[rank] = self.zygote.spawn(rank)
                self.workers[rank].link.settimeout(HANG_S)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.workers))

    def order(self, ranks: Iterable[int], order: Frame, **for_rank: Frame) -> None:
        """Send an order; `for_rank` adds fields for single ranks (`r3={...}`)."""
        for rank in ranks:
            comm_program.send(self.workers[rank].link, {**order, **for_rank.get(f"r{rank}", {})})

    def replies(self, ranks: Iterable[int]) -> dict[int, Frame]:
        """One reply of each rank. A rank that hangs raises TimeoutError with its log."""
        found = {}
        for rank in ranks:
            try:
                reply = comm_program.receive(self.workers[rank].link)
            except TimeoutError:
                raise TimeoutError(f"rank {rank} hangs: {self.workers[rank].log_path.read_text()[-2000:]}") from None
            assert reply is not None, f"rank {rank} died: {self.workers[rank].log_path.read_text()[-2000:]}"
            found[rank] = reply
        return found

    def do(self, ranks: Sequence[int], order: Frame, **for_rank: Frame) -> dict[int, Frame]:
        """Order and replies."""
        self.order(ranks, order, **for_rank)
        return self.replies(ranks)

    def values(self, ranks: Sequence[int], order: Frame) -> list[Any]:
        """Values of an order that must succeed everywhere."""
        replies = self.do(ranks, order)
        assert {r["outcome"] for r in replies.values()} == {"ok"}, replies
        return [replies[rank]["value"] for rank in ranks]

    def build_order(self, ranks: Sequence[int]) -> Frame:
        """The order to build the next epoch."""
        self.epoch += 1
        return {"do": "build", "epoch": self.epoch, "specs": world_specs(ranks), "address": self.address}

    def build(self, ranks: Sequence[int]) -> int:
        """A new epoch with all groups of `ranks`, checked by one all-reduce on the world. Returns its number."""
        self.values(ranks, self.build_order(ranks))
        expected = float(sum(r + 1 for r in ranks))
        order = {"do": "operate", "epoch": self.epoch, "group": "world", "op": "all_reduce"}
        assert self.values(ranks, order) == [[expected]] * len(ranks)
        return self.epoch

    def retire(self, ranks: Sequence[int], epoch: int) -> None:
        """Retire `epoch` on all ranks."""
        self.values(ranks, {"do": "retire", "epoch": epoch})
        self.values(ranks, {"do": "forget", "epoch": epoch})

    def abort(self, ranks: Iterable[int], epoch: int) -> None:
        """What the agents do after a fault."""
        self.order(ranks, {"do": "abort", "epoch": epoch})

    def await_fault(self, rank: int, fault: str) -> None:
        """Until the victim is really dead or stopped."""
        if fault == "kill":
            assert self.zygote.wait_exit(self.workers[rank].pid) == -signal.SIGKILL
        else:
            wait_for_blocking(lambda: self.workers[rank].state() == "T", HANG_S, what=f"rank {rank} stopped")

    def bury(self, rank: int, fault: str) -> None:
        """Fence a frozen victim, and forget it."""
        worker = self.workers.pop(rank)
        if fault == "freeze":
            os.killpg(worker.pid, signal.SIGKILL)
            assert self.zygote.wait_exit(worker.pid) == -signal.SIGKILL

    def close(self) -> None:
        """End everything."""
        assert self.zygote.close() == 0

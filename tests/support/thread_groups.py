"""Process groups between threads of one process, under the port of `resihp_trainer.comm`: exact and quick.

Operations start at once and complete in `wait`; results are computed in rank order, so all members get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import TypeVar

import torch
from torch import Tensor

from resihp_plan import GroupSpec

T = TypeVar("T")
HANG_S = 120.0


@dataclass
class Exchange:
    """What the members of one group have posted: (sequence number, rank) -> payload."""

    ranks: tuple[int, ...]
    posted: dict[tuple[int, int], object] = field(default_factory=dict)
    changed: Condition = field(default_factory=Condition)

    def post(self, number: int, rank: int, payload: object) -> None:
        with self.changed:
            self.posted[number, rank] = payload
            self.changed.notify_all()

    def collect(self, number: int) -> list[object]:
        with self.changed:
            keys = [(number, rank) for rank in self.ranks]
            if not self.changed.wait_for(lambda: all(k in self.posted for k in keys), HANG_S):
                raise TimeoutError(f"operation {number}: only {sorted(r for n, r in self.posted if n == number)} came")
            return [self.posted[k] for k in keys]


@dataclass
class ThreadPending:
    finish: Callable[[], None]
    done: bool = False

    def wait(self) -> None:
        if not self.done:
            self.finish()
            self.done = True

    def is_done(self) -> bool:
        self.wait()
        return True


class ThreadGroup:
    """One member's view of an exchange."""

    def __init__(self, name: str, exchange: Exchange, rank: int) -> None:
        self.name, self.ranks = name, exchange.ranks
        self._exchange, self._rank, self._number = exchange, rank, 0

    def _start(self, payload: object, finish: Callable[[list[object]], None]) -> ThreadPending:
        number = self._number
        self._number += 1
        self._exchange.post(number, self._rank, payload)
        return ThreadPending(lambda: finish(self._exchange.collect(number)))

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> ThreadPending:
        reduce = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[op]

        def finish(parts: list[object]) -> None:
            total = parts[0].clone()
            for part in parts[1:]:
                total = reduce(total, part)
            tensor.copy_(total)

        return self._start(tensor.clone(), finish)

    def broadcast(self, tensor: Tensor, src: int) -> ThreadPending:
        return self._start(tensor.clone(), lambda parts: tensor.copy_(parts[self.ranks.index(src)]))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> ThreadPending:
        def finish(parts: list[object]) -> None:
            for output, part in zip(outputs, parts, strict=True):
                output.copy_(part)

        return self._start(tensor.clone(), finish)

    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> ThreadPending:
        def finish(parts: list[object]) -> None:
            me = self.ranks.index(self._rank)
            arrived = [packets[me] for packets in parts]
            assert [len(p) for p in arrived] == list(output_splits)
            output.copy_(torch.cat(arrived))

        return self._start(input.clone().split(list(input_splits)), finish)


def run_ranks(specs: Sequence[GroupSpec], body: Callable[[int, Mapping[str, ThreadGroup]], T]) -> dict[int, T]:
    """Run `body(rank, its groups by name)` in one thread per rank of the specs; results by rank."""
    ranks = sorted({rank for spec in specs for rank in spec.ranks})
    exchanges = {spec.name: Exchange(tuple(spec.ranks)) for spec in specs}

    def start(rank: int) -> T:
        return body(rank, {n: ThreadGroup(n, e, rank) for n, e in exchanges.items() if rank in e.ranks})

    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = {rank: pool.submit(start, rank) for rank in ranks}
        return {rank: future.result(timeout=240) for rank, future in futures.items()}

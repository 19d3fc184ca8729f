"""Reads the commits that the ranks of one job print, kills one of them, and times the others. Standard library only, as
torchft's environment runs it too.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

BEFORE, AFTER = 12, 3
"""Steps with all ranks before the death, and of every survivor after it."""
LIMIT_S = 120.0
"""For the steps before the death, and again for those after it. torchft's own bounds are 60 s by default."""


class RankEnded(Exception):
    """A rank that nobody killed is gone."""


@dataclass(frozen=True)
class Loss:
    """Seconds."""

    total_s: float
    """From the signal to the next commit of the last survivor."""
    iteration_s: float
    """Median of the steps before."""

    @property
    def stall_s(self) -> float:
        """Without training: less the iteration that would have passed anyway."""
        return self.total_s - self.iteration_s


def say(rank: int, step: int, world: int) -> None:
    """In a rank: a step is committed. In one piece, because ranks share a pipe."""
    os.write(sys.stdout.fileno(), f"commit {rank} {step} {time.monotonic()} {world}\n".encode())


class Commits:
    """Of one job: rank -> [(step, seconds, world)]."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], ranks: int) -> None:
        self.by_rank: dict[int, list[tuple[int, float, int]]] = {rank: [] for rank in range(ranks)}
        self._processes, self._selector, self._rest = processes, selectors.DefaultSelector(), {}
        for process in processes:
            assert process.stdout is not None
            self._rest[process.stdout.fileno()] = b""
            self._selector.register(process.stdout, selectors.EVENT_READ)

    def wait(self, is_reached: Callable[[], bool]) -> None:
        """Read until then. Raises TimeoutError, RankEnded."""
        deadline_s = time.monotonic() + LIMIT_S
        while not is_reached():
            if any(p.poll() not in (None, -signal.SIGKILL) for p in self._processes):
                raise RankEnded("a rank that nobody killed has ended")
            if time.monotonic() > deadline_s:
                counts = [len(c) for c in self.by_rank.values()]
                raise TimeoutError(f"not within {LIMIT_S:.0f} s; commits {counts}")
            for key, _ in self._selector.select(0.05):
                self._read(key.fd)

    def _read(self, descriptor: int) -> None:
        arrived = os.read(descriptor, 65536)
        if not arrived:  # a rank of its own is gone
            self._selector.unregister(descriptor)
        *lines, self._rest[descriptor] = (self._rest[descriptor] + arrived).split(b"\n")
        for line in lines:
            match line.split():
                case [b"commit", rank, step, at, world]:
                    self.by_rank[int(rank)].append((int(step), float(at), int(world)))


def lose(processes: Sequence[subprocess.Popen[bytes]], ranks: int, victim: Callable[[], int]) -> Loss:
    """Kill the last rank (its process: `victim()`) in the middle of an iteration. Raises TimeoutError, RankEnded."""
    commits = Commits(processes, ranks)
    seen = commits.by_rank
    commits.wait(lambda: all(sum(world == ranks for *_, world in seen[r]) >= BEFORE for r in seen))
    whole = [at for _, at, world in seen[0] if world == ranks]
    iteration_s = median(b - a for a, b in itertools.pairwise(whole[5:]))
    time.sleep(iteration_s / 2)  # into the middle of an iteration
    struck_s = time.monotonic()
    os.kill(victim(), signal.SIGKILL)
    survivors = range(ranks - 1)
    commits.wait(lambda: all(sum(at > struck_s and w < ranks for _, at, w in seen[r]) >= AFTER for r in survivors))
    firsts = [next(at for _, at, world in seen[r] if at > struck_s and world < ranks) for r in survivors]
    return Loss(max(firsts) - struck_s, iteration_s)

"""Decides about aborts in the link's reader thread, while the training thread may be blocked; queues the other frames.

An epoch is aborted by the death of a member or a broken link, and also by every order that replaces it: a newer plan
that is not `planned`, `FinishNow`, `StopNow`. Otherwise a rank that waits for peers who left would not read its orders.

`enter` and `on_frame` share a lock, so no death can fall between them: one that is known before its epoch is entered
aborts the epoch in `enter`, a later one in `on_frame`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Protocol

from resihp_messages.link import (
    AbortEpoch,
    Configure,
    CorruptState,
    DownFrame,
    FinishNow,
    InstallPlan,
    SetSpeed,
    StopNow,
    Validate,
)
from resihp_messages.placement import paired_starts

Order = Configure | InstallPlan | SetSpeed | CorruptState | Validate | FinishNow | StopNow
"""What the training thread has to act on."""


class Abortable(Protocol):
    """The part of a communicator that the watcher needs."""

    def abort(self, epoch: int) -> None: ...


@dataclass(frozen=True)
class _Death:
    start: int
    """Of the rank; a later start of it lives, or may live."""
    noticed_s: float


class Watcher:
    """One per worker. The link exists before the communicator (which the first frame describes), hence `attach`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._communicator: Abortable | None = None
        self._epoch = -1
        self._world: Mapping[int, int] = {}
        """Rank -> start, of the members of the entered epoch."""
        self._dead: dict[int, _Death] = {}
        """By rank, the death of its newest start that is gone."""
        self._broken: dict[int, float] = {}
        """Epoch with a broken link -> when that was noticed."""
        self._noticed_s: dict[int, float] = {}
        self._newest_plan = -1
        """Newest epoch that is to be installed without a vote."""
        self._is_ending = False
        self._orders: SimpleQueue[Order] = SimpleQueue()

    def attach(self, communicator: Abortable) -> None:
        """Aborts go to `communicator`; before the first `enter`."""
        with self._lock:
            self._communicator = communicator

    def enter(self, epoch: int, world: Collection[int], starts: Mapping[int, int] | None = None) -> None:
        """The training thread is about to build `epoch`, whose plan ranks are `world`. `starts`: rank -> which start of
        it is meant, if it is not the first (0).

        Aborts it at once if a member is known to be dead or a newer order waits; then the construction raises.
        """
        with self._lock:
            self._epoch, self._world = epoch, {rank: (starts or {}).get(rank, 0) for rank in world}
            self._judge()

    def on_frame(self, message: DownFrame) -> None:
        """Called by the link for every frame, in order."""
        if not isinstance(message, AbortEpoch):
            self._orders.put(message)  # before the abort: the training thread then finds what replaces its epoch
        with self._lock:
            if isinstance(message, AbortEpoch):
                self._note_fault(message)
            else:
                self._note_replacement(message)
            self._judge()

    def next_order(self, timeout_s: float) -> Order | None:
        """The next frame for the training thread, in order of arrival; None if none arrives in time."""
        try:
            return self._orders.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return None

    @property
    def dead(self) -> Mapping[int, int]:
        """Rank -> its newest start that the agent has declared dead."""
        with self._lock:
            return {rank: death.start for rank, death in self._dead.items()}

    def noticed_s(self, epoch: int) -> float | None:
        """When the agent noticed the fault that aborted `epoch` (CLOCK_MONOTONIC of this host; the first fault counts).

        None if no such abort has arrived, which is possible although the epoch was aborted by this rank itself.
        """
        with self._lock:
            return self._noticed_s.get(epoch)

    # --- under the lock -------------------------------------------------------------------------------------------

    def _note_fault(self, message: AbortEpoch) -> None:
        for rank, start in paired_starts(message.dead_ranks, message.starts).items():
            if rank not in self._dead or self._dead[rank].start < start:
                self._dead[rank] = _Death(start, message.noticed_s)
        if not message.dead_ranks:
            self._broken.setdefault(message.epoch, message.noticed_s)

    def _note_replacement(self, order: Order) -> None:
        match order:
            case InstallPlan() if order.mode != "planned":
                self._newest_plan = max(self._newest_plan, order.epoch)
            case FinishNow() | StopNow():
                self._is_ending = True

    def _judge(self) -> None:
        """Abort the entered epoch if a fault concerns it or an order replaces it. Any other news is stale."""
        if self._epoch < 0:
            return
        faults_s = [
            death.noticed_s for rank, death in self._dead.items() if death.start >= self._world.get(rank, math.inf)
        ]
        faults_s += [self._broken[self._epoch]] if self._epoch in self._broken else []
        if faults_s:
            self._noticed_s.setdefault(self._epoch, min(faults_s))
        if faults_s or self._is_ending or self._newest_plan > self._epoch:
            if self._communicator is None:
                raise ValueError(f"epoch {self._epoch} was entered before a communicator was attached")
            self._communicator.abort(self._epoch)

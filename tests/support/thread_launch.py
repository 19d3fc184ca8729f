"""`resihp launch` and its ranks as threads of one process: the real `Members`, groups that a death breaks, no sockets.

A rank can be made to die at any of its operations, before or after its part of it has been sent; and ranks can be made
to miss the result of the operation at which another one died, which real networks do now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, TypeVar

from resihp_attach.ddp.line import EVER, Order
from resihp_attach.ddp.ties import Ties
from resihp_cli.launching.members import Members
from resihp_trainer.comm import EpochAborted, EpochGroups, GroupSpecification, WaitSeconds
from support.thread_groups import HANG_S, ThreadGroup, ThreadPending

T = TypeVar("T")


class Died(BaseException):
    """The end of a rank's thread, as SIGKILL would be."""


@dataclass(frozen=True)
class Death:
    """Of `rank` at its operation number `at` (counted over the whole job)."""

    rank: int
    at: int
    has_sent: bool
    missed_by: Collection[int] = ()
    """Survivors that do not get the result of that operation."""


@dataclass
class ThreadLaunch:
    """All ranks of one job, and the shared memory between them."""

    world: int
    deaths: Sequence[Death] = ()
    members: Members = field(init=False)
    fired: list[Death] = field(default_factory=list)
    resumed: list[tuple[int, int]] = field(default_factory=list)
    """Epoch, iteration."""

    def __post_init__(self) -> None:
        self.members = Members(range(self.world))
        self.news = Condition()
        self.aborted = 0
        self.posted: dict[tuple[int, int, int], object] = {}
        """Epoch, number, rank -> payload."""
        self.missed: set[tuple[int, int, int]] = set()

    def run(self, body: Callable[[Ties], T]) -> dict[int, T]:
        """`body` on every rank; results of the survivors."""

        def start(rank: int) -> T | None:
            try:
                return body(Ties(rank, ThreadCommunicator(self, rank), ThreadLauncher(self, rank)))
            except Died:
                with self.news:
                    self.members.gone(rank)
                    self.told()
                return None

        with ThreadPoolExecutor(self.world) as pool:
            futures = {rank: pool.submit(start, rank) for rank in range(self.world)}
            results = {rank: future.result(timeout=240) for rank, future in futures.items()}
        return {rank: result for rank, result in results.items() if rank not in self.members.lost}  # type: ignore[misc]

    def told(self) -> None:
        """Under `news`: a new order ends all older epochs."""
        if self.members.epoch is not None:
            self.aborted = max(self.aborted, self.members.epoch.number - 1)
        self.news.notify_all()

    def wait_for(self, condition: Callable[[], Any]) -> None:
        if not self.news.wait_for(condition, HANG_S):
            raise TimeoutError(f"nothing happened in {self.members.epoch}")


class ThreadLauncher:
    """A `Launcher`."""

    def __init__(self, launch: ThreadLaunch, rank: int) -> None:
        self._launch, self._rank = launch, rank

    def say(self, kind: str, **fields: Any) -> None:
        launch = self._launch
        with launch.news:
            match kind:
                case "hello":
                    launch.members.hello(self._rank)
                case "done":
                    launch.members.done(self._rank, fields["epoch"])
                case "resumed":
                    launch.resumed.append((fields["epoch"], fields["iteration"]))
                case _:
                    raise AssertionError(f"{kind} {fields}")
            launch.told()

    def next_order(self, after: int) -> Order:
        launch = self._launch
        with launch.news:
            launch.wait_for(lambda: launch.members.epoch is not None and launch.members.epoch.number > after)
            assert launch.members.epoch is not None
            return Order(launch.members.epoch.number, launch.members.epoch.members)

    def may_leave(self, epoch: int) -> bool:
        launch = self._launch
        with launch.news:
            launch.wait_for(
                lambda: launch.members.is_leaving or (launch.members.epoch and launch.members.epoch.number > epoch)
            )
            return launch.members.is_leaving


class ThreadCommunicator:
    """A `Communicator`."""

    def __init__(self, launch: ThreadLaunch, rank: int) -> None:
        self._launch, self._rank, self._count = launch, rank, 0

    def build(
        self, epoch: int, specs: Sequence[GroupSpecification], rank: int, store_address: str, namespace: str = ""
    ) -> EpochGroups:
        self.check(epoch)
        (spec,) = specs
        return EpochGroups(epoch, rank, {spec.name: MortalGroup(self._launch, self, epoch, rank, spec.ranks)})

    begin = build

    def complete(self, groups: EpochGroups) -> EpochGroups:
        return groups

    def settle(self, epoch: int) -> None:
        self.check(epoch)

    @property
    def streams(self) -> None:
        return None

    def next_number(self) -> int:
        self._count += 1
        return self._count - 1

    def abort(self, epoch: int) -> None:
        with self._launch.news:
            self._launch.aborted = max(self._launch.aborted, min(epoch, EVER))
            self._launch.news.notify_all()

    def check(self, epoch: int) -> None:
        if epoch <= self._launch.aborted:
            raise EpochAborted(epoch)

    def retire(self, groups: EpochGroups) -> None:
        return

    def take_waits(self) -> WaitSeconds:
        return WaitSeconds()


class MortalGroup(ThreadGroup):
    """Its operations end by `EpochAborted` once the epoch is over."""

    def __init__(
        self, launch: ThreadLaunch, communicator: ThreadCommunicator, epoch: int, rank: int, ranks: tuple[int, ...]
    ) -> None:
        self.name, self.ranks = "world", ranks
        self._launch, self._communicator, self._epoch, self._rank, self._number = launch, communicator, epoch, rank, 0

    def _start(self, payload: object, finish: Callable[[list[object]], None]) -> ThreadPending:
        launch, number = self._launch, self._number
        self._communicator.check(self._epoch)
        self._number += 1
        count = self._communicator.next_number()
        death = next((d for d in launch.deaths if (d.rank, d.at) == (self._rank, count)), None)
        with launch.news:
            if death is not None:
                launch.fired.append(death)
                launch.missed.update((self._epoch, number, rank) for rank in death.missed_by)
            if death is None or death.has_sent:
                launch.posted[self._epoch, number, self._rank] = payload
                launch.news.notify_all()
        if death is not None:
            raise Died
        return ThreadPending(lambda: finish(self._collect(number)))

    def _collect(self, number: int) -> list[object]:
        launch, keys = self._launch, [(self._epoch, number, rank) for rank in self.ranks]

        def is_here() -> bool:
            return (self._epoch, number, self._rank) not in launch.missed and all(k in launch.posted for k in keys)

        with launch.news:
            launch.wait_for(lambda: is_here() or self._epoch <= launch.aborted)
            if not is_here():
                raise EpochAborted(self._epoch)
            return [launch.posted[k] for k in keys]

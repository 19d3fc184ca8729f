"""One job under `resihp launch`: events of its ranks -> `Members` -> orders to the ranks."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resihp_cli.launching import ranks as processes
from resihp_cli.launching.members import Members
from resihp_cli.launching.ranks import LaunchedRank
from resihp_trainer import store

TERMINATE_S = 10.0
"""From SIGTERM to SIGKILL."""
_DEATH_NOTICE_S = 0.1
"""A dying process closes its sockets before its end can be waited for: how long a broken group may be due to that."""
_LOOK_S = 0.25
"""How often ranks are looked at for being stopped."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    num_ranks: int
    min_ranks: int = 1
    stall_s: float = 5.0
    """A rank that is stopped for so long is killed."""


@dataclass
class Loss:
    """A rank that ended before the job did."""

    rank: int
    ending: str
    epoch: int
    """That the others began for it; 0: none."""
    noticed_s: float
    """Monotonic."""
    resumed_s: dict[int, float] = field(default_factory=dict)
    """Rank -> seconds from the notice to its next committed step."""
    iteration: int = 0
    """First one that was committed afterwards."""


class LaunchedJob:
    """`run` once."""

    def __init__(self, command: Sequence[str], options: Options, say: Callable[[str], None]) -> None:
        self._command, self._options, self._say = command, options, say
        self._members = Members(range(options.num_ranks))
        self._ranks: dict[int, LaunchedRank] = {}
        self._namespace = secrets.token_hex(4)
        self._store = ""
        self._told = 0
        self._ending: asyncio.Task[None] | None = None
        self.losses: list[Loss] = []
        self.codes: dict[int, int] = {}
        """Exit codes, as in `subprocess`."""
        self.stopped = ""
        """Why the job was ended before its time."""

    async def run(self, base: Mapping[str, str]) -> None:
        """Until all ranks have ended. Cancelled, it ends them. Raises `CliError` if they cannot be started."""
        async with await store.start_server("127.0.0.1") as server:
            self._store = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            port, count = processes.free_port(), self._options.num_ranks
            try:
                for rank in range(count):
                    self._ranks[rank] = await processes.start(
                        self._command, rank, processes.environment(rank, count, port, base)
                    )
                looking = asyncio.create_task(self._look())
                await asyncio.gather(*(self._follow(rank) for rank in self._ranks.values()))
                looking.cancel()
            finally:
                await self._end()

    @property
    def pids(self) -> dict[int, int]:
        return {rank: launched.process.pid for rank, launched in self._ranks.items()}

    # --- one rank -------------------------------------------------------------------------------------------------

    async def _follow(self, rank: LaunchedRank) -> None:
        listening = asyncio.create_task(self._listen(rank))
        code = await rank.process.wait()
        noticed_s = time.monotonic()
        listening.cancel()
        self.codes[rank.rank] = code
        if not self._members.is_leaving and (code or self._members.has_joined):
            self._gone(rank.rank, code, noticed_s)

    async def _listen(self, rank: LaunchedRank) -> None:
        async for frame in rank.frames():
            self._heard(rank.rank, frame)

    def _heard(self, rank: int, frame: Mapping[str, Any]) -> None:
        match frame:
            case {"type": "hello"}:
                self._members.hello(rank)
            case {"type": "broken", "epoch": int(epoch), "error": str(error)}:
                asyncio.get_running_loop().call_later(_DEATH_NOTICE_S, self._broken, epoch, error)
            case {"type": "resumed", "epoch": int(epoch), "iteration": int(iteration)}:
                if self._members.resumed(epoch):
                    self._resumed(rank, iteration)
            case {"type": "done", "epoch": int(epoch)}:
                self._members.done(rank, epoch)
        self._tell()

    def _broken(self, epoch: int, error: str) -> None:
        """Old news if the death that caused it has been noticed meanwhile."""
        if not self._members.broken(epoch):
            self._stop(f"communication fails again and again, and no rank has died: {error}")
        self._tell()

    def _gone(self, rank: int, code: int, noticed_s: float) -> None:
        members = self._members
        members.gone(rank)
        loss = Loss(rank, processes.ending(code), members.epoch.number if members.epoch else 0, noticed_s)
        self.losses.append(loss)
        if self.stopped or not members.alive:
            return
        if not members.has_joined:  # an ordinary script: as torchrun does
            if code:
                self._stop(f"rank {rank} ended ({loss.ending}), and the script does not use resihp_attach.ddp")
        elif len(members.alive) < self._options.min_ranks:
            self._stop(f"rank {rank} lost ({loss.ending}): {len(members.alive)} of {self._options.min_ranks} are left")
        else:
            alive = ", ".join(map(str, sorted(members.alive)))
            self._say(f"rank {rank} lost ({loss.ending}); going on with {alive}")
            self._tell()

    def _resumed(self, rank: int, iteration: int) -> None:
        now_s = time.monotonic()
        for loss in reversed(self.losses):
            if loss.resumed_s.keys() >= self._members.alive:
                break  # that one was over before this one
            loss.resumed_s.setdefault(rank, now_s - loss.noticed_s)
            loss.iteration = loss.iteration or iteration
            if loss.resumed_s.keys() >= self._members.alive:
                after_ms = 1e3 * max(loss.resumed_s.values())
                self._say(f"all past iteration {iteration}, {after_ms:.0f} ms after the loss of rank {loss.rank}")

    # --- all ranks ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """The newest order, if it has not been given yet; that all may leave, if they may."""
        epoch = self._members.epoch
        if epoch is not None and epoch.number > self._told:
            self._told = epoch.number
            order = {"epoch": epoch.number, "members": epoch.members, "store": self._store}
            for rank in epoch.members:
                self._ranks[rank].tell({"type": "epoch", "namespace": self._namespace, **order})
        if self._members.is_leaving:
            for rank in self._members.alive:
                self._ranks[rank].tell({"type": "leave"})

    def _stop(self, reason: str) -> None:
        """End the job."""
        if not self.stopped:
            self.stopped = reason
            self._say(reason)
            self._ending = asyncio.create_task(self._end())

    async def _look(self) -> None:
        """A stopped rank would be waited for by all others, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for rank in self._ranks.values():
                if rank.process.returncode is not None or not processes.is_stopped(rank.process.pid):
                    rank.stopped_s = None
                elif rank.stopped_s is None:
                    rank.stopped_s = time.monotonic()
                elif time.monotonic() - rank.stopped_s > self._options.stall_s:
                    self._say(f"rank {rank.rank} is stopped: killed")
                    rank.signal(signal.SIGKILL)

    async def _end(self) -> None:
        """Ask all that still run to end, then make them."""
        running = [rank for rank in self._ranks.values() if rank.process.returncode is None]
        for rank in running:
            rank.tell({"type": "stop", "reason": self.stopped or "resihp launch was asked to end"})
            rank.signal(signal.SIGTERM)
        if running:
            waits = [asyncio.ensure_future(rank.process.wait()) for rank in running]
            _, late = await asyncio.wait(waits, timeout=TERMINATE_S)
            for rank in running if late else ():
                rank.signal(signal.SIGKILL)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*waits)
        for rank in self._ranks.values():
            rank.close()

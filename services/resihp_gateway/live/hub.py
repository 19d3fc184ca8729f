"""One hub per job that somebody looks at: refreshes the facts, encodes what changed once, feeds every viewer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import structlog

from resihp_bus.port import BusError
from resihp_gateway.context import Gateway
from resihp_gateway.event_stream import HEARTBEAT
from resihp_gateway.live.facts import Facts, Point
from resihp_gateway.live.mailbox import Mailbox
from resihp_messages import AnyEnvelope, Kind
from resihp_store import StoreError

REFRESH_S = 1.0
HISTORY_EVERY = 2
"""Refreshes between two looks at the history without an event."""
HOT_TURNS = 6
HOT_S = 0.5
"""After an event refreshes come sooner, and all of them look at the history: the record follows the event a little
later."""
ORDER = ("job", "map", "rates", "points", "health", "incidents", "reconfigurations", "control")
_log = structlog.get_logger("gateway")


def frame(name: str, value: Any) -> bytes:
    """One server-sent event. Facts come from validated models and stored finite numbers, so no NaN can be in them."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n".encode()


class Hub:
    """Runs while it has viewers."""

    def __init__(self, gateway: Gateway, job: str) -> None:
        self._gateway = gateway
        self._facts = Facts(gateway, job)
        self._frames: dict[str, bytes] = {}
        self._viewers: set[Mailbox] = set()
        self._wake = asyncio.Event()
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_viewers(self) -> int:
        return len(self._viewers)

    async def enter(self) -> Mailbox:
        """A box that already holds every fact."""
        box = Mailbox()
        self._viewers.add(box)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"live {self._facts.job}")
        try:
            await self._first.wait()
        except asyncio.CancelledError:
            await self.leave(box)
            raise
        self.fill(box)
        return box

    def fill(self, box: Mailbox) -> None:
        """Everything anew."""
        box.take()
        for name in ORDER:
            if name == "points":
                box.put(name, frame("points", {"whole": True, "points": self._facts.points}))
            elif name in self._frames:
                box.put(name, self._frames[name])

    async def leave(self, box: Mailbox) -> None:
        """The last one stops the work."""
        self._viewers.discard(box)
        if not self._viewers and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._first.clear()

    async def _run(self) -> None:
        events = await self._listen()
        turn = hot = 0
        try:
            while True:
                hot = HOT_TURNS if self._wake.is_set() else hot - 1
                self._wake.clear()
                try:
                    new = await self._facts.refresh(quick=hot <= 0 and turn % HISTORY_EVERY != 0)
                    self._publish(new)
                    self._first.set()
                except StoreError as error:
                    self._tell("stale", {"reason": str(error)})
                    self._first.set()
                turn += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), HOT_S if hot > 0 else REFRESH_S)
                if self._wake.is_set():
                    await asyncio.sleep(0.05)  # events come in bursts: one look after them all
        finally:
            if events is not None:
                with contextlib.suppress(BusError):
                    await events.stop()

    async def _listen(self) -> Any:
        async def hear(_: AnyEnvelope) -> None:
            self._wake.set()

        try:
            return await self._gateway.bus.listen(Kind.EVENT, hear, job=self._facts.job)
        except BusError as error:
            _log.warning("live view without events: it looks every half second", error=str(error))
            return None

    def _publish(self, new: list[Point]) -> None:
        if self._frames.pop("stale", None) is not None:
            for box in self._viewers:
                box.put("stale", frame("stale", None))
        if new:
            for box in self._viewers:
                box.append(frame("points", {"whole": False, "points": new}))
        for name in ORDER:
            if name in self._facts.found:
                self._tell(name, self._facts.found[name])

    def _tell(self, name: str, value: Any) -> None:
        encoded = frame(name, value)
        if self._frames.get(name) == encoded:
            return
        self._frames[name] = encoded
        for box in self._viewers:
            box.put(name, encoded)


class Hubs:
    """The hubs of one gateway, by job."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._hubs: dict[str, Hub] = {}

    @property
    def num_viewers(self) -> int:
        return sum(hub.num_viewers for hub in self._hubs.values())

    async def stream(self, job: str) -> AsyncIterator[bytes]:
        """Frames for one viewer until the server closes. A heartbeat comment follows every silence."""
        gateway = self._gateway
        hub = self._hubs.setdefault(job, Hub(gateway, job))
        yield b"retry: 1000\n: open\n\n"
        box = await hub.enter()
        closed = asyncio.create_task(gateway.closing.wait())
        filled = asyncio.create_task(box.wait())
        try:
            while True:
                waited: set[asyncio.Task[Any]] = {filled, closed}
                done, _ = await asyncio.wait(waited, timeout=gateway.heartbeat_s, return_when=asyncio.FIRST_COMPLETED)
                if closed in done:
                    return
                if filled not in done:
                    yield HEARTBEAT
                    continue
                if box.overflowed:
                    hub.fill(box)
                yield box.take()
                filled = asyncio.create_task(box.wait())
        finally:
            for task in (filled, closed):
                task.cancel()
            await hub.leave(box)
            if not hub.num_viewers:
                self._hubs.pop(job, None)

"""What waits for one viewer: of every fact only the newest; appended points in order, up to a bound."""

from __future__ import annotations

import asyncio

MAX_APPENDED = 256


class Mailbox:
    """Written by the hub, emptied by one response. A viewer that falls behind loses nothing but intermediate facts;
    if appended frames overflow, `take` says so by `overflowed` and everything is sent anew."""

    def __init__(self) -> None:
        self._newest: dict[str, bytes] = {}
        self._appended: list[bytes] = []
        self._filled = asyncio.Event()
        self.overflowed = False

    def put(self, fact: str, frame: bytes) -> None:
        """Replaces what waits under the same name."""
        self._newest[fact] = frame
        self._filled.set()

    def append(self, frame: bytes) -> None:
        if len(self._appended) >= MAX_APPENDED:
            self.overflowed = True
            self._appended.clear()
        if not self.overflowed:
            self._appended.append(frame)
        self._filled.set()

    async def wait(self) -> None:
        """Until something is there."""
        await self._filled.wait()

    def take(self) -> bytes:
        """Everything that waits, facts first; empties the box."""
        frames = b"".join((*self._newest.values(), *self._appended))
        self._newest.clear()
        self._appended.clear()
        self._filled.clear()
        self.overflowed = False
        return frames

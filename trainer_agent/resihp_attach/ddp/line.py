"""The line of a rank to `resihp launch`: who is alive is decided there, and read here by a thread of its own.

Frames are those of `resihp_attach.wire`, over a socket that the launcher leaves to the rank (`place.LAUNCH_FD`):

    rank -> launcher    hello {rank}   broken {epoch, error}   resumed {epoch, iteration}   done {epoch, iteration}
    launcher -> rank    epoch {epoch, members, store, namespace}   leave {}   stop {reason}

A new epoch aborts all older ones at once, while the training thread may be blocked in one of them.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from resihp_attach import wire
from resihp_attach.ddp.errors import LauncherGone

EVER = 1 << 62
"""Newer than every epoch."""


@dataclass(frozen=True)
class Order:
    """An epoch that the launcher wants: who takes part, and where they meet."""

    epoch: int
    members: tuple[int, ...]
    store: str = ""
    namespace: str = ""


class Launcher(Protocol):
    """What a rank asks of its launcher."""

    def say(self, kind: str, **fields: Any) -> None:
        """Never raises: a launcher that is gone is noticed by the next wait."""
        ...

    def next_order(self, after: int) -> Order:
        """The newest order with an epoch above `after`; waits for one. Raises `LauncherGone`."""
        ...

    def may_leave(self, epoch: int) -> bool:
        """Wait until all members of `epoch` are done (True), or there is a newer epoch (False). Raises
        `LauncherGone`."""
        ...


class Alone:
    """No launcher: one process, one epoch."""

    def say(self, kind: str, **fields: Any) -> None:
        return

    def next_order(self, after: int) -> Order:
        if after > 0:
            raise LauncherGone("a job of a single process has lost its group")
        return Order(1, (0,))

    def may_leave(self, epoch: int) -> bool:
        return True


class Line:
    """A `Launcher` at the other end of a socket. `abort(epoch)` is called from the reader thread."""

    def __init__(self, sock: socket.socket, abort: Callable[[int], None]) -> None:
        self._sock, self._abort = sock, abort
        self._news = threading.Condition()
        self._order: Order | None = None
        self._leave = False
        self._gone = ""
        threading.Thread(target=self._read, name="resihp-launch", daemon=True).start()

    def say(self, kind: str, **fields: Any) -> None:
        try:
            self._sock.sendall(wire.encode({"type": kind, **fields}))
        except OSError:
            return

    def next_order(self, after: int) -> Order:
        with self._news:
            self._news.wait_for(lambda: self._gone or (self._order is not None and self._order.epoch > after))
            if self._gone:
                raise LauncherGone(self._gone)
            assert self._order is not None
            return self._order

    def may_leave(self, epoch: int) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._gone or self._leave or (self._order and self._order.epoch > epoch))
            if self._gone and not self._leave:
                raise LauncherGone(self._gone)
            return self._leave

    # --- the thread -----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            with self._sock.makefile("rb") as stream:
                while header := stream.read(wire.HEADER.size):
                    self._heard(json.loads(stream.read(wire.HEADER.unpack(header)[0])))
            reason = "resihp launch is gone"
        except (OSError, ValueError) as error:
            reason = f"the line to resihp launch broke: {error}"
        self._lost(reason)

    def _heard(self, frame: Mapping[str, Any]) -> None:
        if frame["type"] == "stop":
            self._lost(str(frame["reason"]))
            return
        if frame["type"] == "epoch":
            order = Order(frame["epoch"], tuple(frame["members"]), frame["store"], frame["namespace"])
            self._abort(order.epoch - 1)
            with self._news:
                self._order = order
                self._news.notify_all()
            return
        with self._news:
            self._leave = True
            self._news.notify_all()

    def _lost(self, reason: str) -> None:
        with self._news:
            self._gone = self._gone or reason
            self._news.notify_all()
        self._abort(EVER)

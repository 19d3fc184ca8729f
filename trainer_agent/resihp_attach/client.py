"""The line to the node's agent: a thread that sends what the training thread leaves for it.

The training thread only appends to a bounded queue. If the agent is away, the queue fills and the oldest frames are
dropped and counted; the line is taken up again when the agent is back. Beats come from this thread, so they go on while
the training thread hangs in a collective, and stop when the process is stopped.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from resihp_attach import wire
from resihp_attach.guard import Guard, guard, warn

BEAT_S = 0.25
MAX_WAITING = 512
"""Frames kept for an agent that is away: minutes of iterations."""
_TIMEOUT_S = 1.0
_RETRY_S = (0.25, 5.0)

State = Callable[[], dict[str, Any]]


class Client:
    """One per process. No method raises, and none but `close` waits."""

    def __init__(self, path: str, hello: State, state: State, *, beat_s: float = BEAT_S, border: Guard = guard) -> None:
        self._path, self._hello, self._state, self._beat_s = path, hello, state, beat_s
        self._border = border
        self._queue: deque[wire.Frame] = deque()
        self._closing = threading.Event()
        self._last: wire.Frame = {}
        self._sock: socket.socket | None = None
        self._warned = False
        self._retry_s = _RETRY_S[0]
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self.num_dropped = 0
        """Frames that nobody got."""
        self.num_sent = 0

    def start(self) -> None:
        """Begin to speak. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._border("line to the agent")(self._run), daemon=True)
            self._thread.name = "resihp-attach"
            self._thread.start()

    def put(self, frame: wire.Frame) -> None:
        """Leave a frame to be sent. In a forked child (a data loader) it goes nowhere: the child is not the rank."""
        if os.getpid() != self._pid:
            return
        self._queue.append(frame)
        while len(self._queue) > MAX_WAITING:
            self._queue.popleft()
            self.num_dropped += 1

    def close(self, last: wire.Frame, *, timeout_s: float = 1.0) -> None:
        """Send what is left and `last`; gives up after `timeout_s`."""
        if os.getpid() != self._pid or self._thread is None:
            return
        self._last = last
        self._closing.set()
        self._thread.join(timeout_s)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            is_last = self._closing.is_set()
            pause_s = self._turn(is_last)
            if is_last:
                break
            self._closing.wait(pause_s)
        self._drop_line()

    def _turn(self, is_last: bool) -> float:
        """Send everything and a beat; returns how long to pause."""
        try:
            if self._sock is None:
                self._sock = wire.connect(self._path, _TIMEOUT_S)
                self._send(self._hello())
                self._retry_s = _RETRY_S[0]
            while self._queue:
                self._send(self._queue[0])
                self._queue.popleft()
            self._send(self._last if is_last else {"type": "beat", "dropped": self.num_dropped, **self._state()})
        except OSError as error:
            self._away(error)
            self._retry_s = min(2 * self._retry_s, _RETRY_S[1])
            return self._retry_s
        return self._beat_s

    def _send(self, frame: wire.Frame) -> None:
        assert self._sock is not None
        try:
            raw = wire.encode(frame)
        except (ValueError, TypeError) as error:  # e.g. a loss that is infinite: one frame is lost, not the line
            self._border.failed("frame", error)
            self.num_dropped += 1
            return
        self._sock.sendall(raw)
        self.num_sent += 1

    def _away(self, error: OSError) -> None:
        self._drop_line()
        if not self._warned:
            self._warned = True
            warn(f"no agent at {self._path}: {error}")

    def _drop_line(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

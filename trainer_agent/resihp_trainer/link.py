"""The worker's end of the Unix socket to its agent: frames down in a reader thread, frames up without waiting.

Training never waits for the socket. What the kernel takes at once goes from the calling thread: waking another one
costs more than the frame, and it would want the interpreter while training computes. Only the rest is left to the
writer thread. Control frames are kept until written; reports of iterations (except the first of an epoch, which is part
of a reconfiguration's record) are dropped and counted while the agent is slow.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from resihp_messages import MalformedMessage
from resihp_messages.link import HEADER, DownFrame, IterationCommitted, UpFrame, frame, parse_down, payload_length

EXIT_AGENT_LOST = 75
"""Exit code of a worker whose agent is gone (`EX_TEMPFAIL`)."""

MAX_WAITING_REPORTS = 64


def exit_agent_lost() -> None:
    """End this process now: without its agent nobody would fence it, so the node counts as lost."""
    os._exit(EXIT_AGENT_LOST)


class Link:
    """`on_frame` is called in the reader thread for every valid frame; `on_lost` once, when the agent is gone."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[DownFrame], None],
        *,
        on_lost: Callable[[], None] = exit_agent_lost,
        max_waiting_reports: int = MAX_WAITING_REPORTS,
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._max_waiting_reports = max_waiting_reports
        self._changed = Condition()
        self._waiting: deque[tuple[bool, bytes]] = deque()
        self._waiting_reports = 0
        self._writing = False
        self._lost = False
        self.dropped = 0
        """Reports not sent because the agent did not read fast enough."""
        self.malformed = 0
        """Frames from the agent that broke the contract and were skipped."""

    def start(self) -> None:
        """Start both threads."""
        for name, body in (("link-reader", self._read_frames), ("link-writer", self._write_frames)):
            Thread(target=body, name=name, daemon=True).start()

    def send(self, message: UpFrame) -> None:
        """Queue a frame; never blocks on the socket. Frames leave in the order of the calls."""
        is_report = isinstance(message, IterationCommitted) and not message.first_of_epoch
        raw = frame(message)
        with self._changed:
            if not (self._waiting or self._writing):
                sent = self._offer(raw)
                if sent == len(raw):
                    return
                if sent:  # what has begun must be finished
                    is_report, raw = False, raw[sent:]
            if is_report and self._waiting_reports >= self._max_waiting_reports:
                self.dropped += 1
                return
            self._waiting_reports += is_report
            self._waiting.append((is_report, raw))
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is handed to the kernel; False if that took longer or the agent is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost or not (self._waiting or self._writing), timeout_s)
            return not (self._lost or self._waiting or self._writing)

    def _offer(self, raw: bytes) -> int:
        """How many bytes the kernel takes now."""
        try:
            return self._sock.send(raw, socket.MSG_DONTWAIT)
        except OSError:  # full; or broken, which the writer will see too
            return 0

    # --- threads --------------------------------------------------------------------------------------------------

    def _read_frames(self) -> None:
        while (raw := self._read_frame()) is not None:
            try:
                message = parse_down(raw)
            except MalformedMessage as error:
                self.malformed += 1
                print(f"link: frame skipped: {error}", file=sys.stderr)
                continue
            self._on_frame(message)
        self._lose()

    def _read_frame(self) -> bytes | None:
        """One payload; None at the end of the stream, also if its framing is broken (it cannot be resumed)."""
        header = self._read_exactly(HEADER.size)
        if header is None:
            return None
        try:
            return self._read_exactly(payload_length(header))
        except MalformedMessage as error:
            print(f"link: stream broken: {error}", file=sys.stderr)
            return None

    def _read_exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._sock.recv(size - len(data))
            except OSError:
                return None
            if not chunk:
                return None
            data += chunk
        return bytes(data)

    def _write_frames(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                is_report, raw = self._waiting.popleft()
                self._waiting_reports -= is_report
                self._writing = True
            try:
                self._sock.sendall(raw)
            except OSError:  # the reader sees the end of the stream too
                self._lose()
                return
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _lose(self) -> None:
        with self._changed:
            if self._lost:
                return
            self._lost = True
            self._changed.notify_all()
        self._on_lost()

"""The agent's end of the Unix socket to one worker.

All methods run on the event loop's thread and never wait, because an abort must be on its way before the agent does
anything that could wait. This is why it is not an asyncio stream: after an exit the agent reads what the worker wrote
last (`drain`) in the same callback, and only then knows whether the exit was expected.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from resihp_messages import MalformedMessage, Wire, link

_CHUNK_BYTES = 1 << 16
_CHUNKS_PER_TURN = 16
"""A talkative worker must not keep the loop from the others."""
_MAX_UNSENT_BYTES = 16 << 20
"""A worker that reads nothing is frozen and will be fenced; until then its frames may not fill the memory."""


class WorkerLink:
    """Frames to and from one worker. `on_frame` gets each valid frame; `on_closed` is called once, with the reason."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_frame: Callable[[link.UpFrame], None],
        on_closed: Callable[[str], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop or asyncio.get_running_loop()
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._received = bytearray()
        self._unsent = bytearray()
        self._closed = False
        self._loop.add_reader(sock, self._readable)

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: Wire) -> bool:
        """Hands the frame to the kernel now, or keeps the rest for later. False if the link is closed."""
        if self._closed:
            return False
        was_empty = not self._unsent
        self._unsent += link.frame(message)
        if was_empty:
            self._writable()
        if len(self._unsent) > _MAX_UNSENT_BYTES:
            self._close("the worker reads nothing")
        return not self._closed

    def drain(self) -> None:
        """Deliver everything that has already arrived."""
        while not self._closed and self._receive():
            pass

    def close(self) -> None:
        """Close from our side; `on_closed` is not called."""
        self._on_closed = lambda reason: None
        self._close("closed by the agent")

    def _readable(self) -> None:
        for _ in range(_CHUNKS_PER_TURN):
            if self._closed or not self._receive():
                return

    def _receive(self) -> bool:
        """One chunk. False if nothing more is there now."""
        try:
            chunk = self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._close(f"read failed: {error}")
            return False
        if not chunk:
            self._close("the worker closed the link")
            return False
        self._received += chunk
        self._deliver()
        return True

    def _deliver(self) -> None:
        header = link.HEADER.size
        while not self._closed and len(self._received) >= header:
            try:
                stop = header + link.payload_length(bytes(self._received[:header]))
                if len(self._received) < stop:
                    return
                message = link.parse_up(bytes(self._received[header:stop]))
            except MalformedMessage as error:
                self._close(f"broken frame: {error}")  # a byte stream cannot be resynchronised
                return
            del self._received[:stop]
            self._on_frame(message)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the worker is gone; frames it wrote before are still to be read
            self._unsent.clear()
            self._loop.remove_writer(self._sock)
            return
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)

    def _close(self, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._on_closed(reason)

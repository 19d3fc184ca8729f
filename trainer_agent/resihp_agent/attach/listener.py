"""The agent's Unix socket for ranks of attached jobs: frames in, nothing out.

A client that breaks the contract is cut off and counted; it comes again with a fresh connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from pathlib import Path
from typing import Protocol

import structlog

from resihp_agent.attach.kernel import listening_socket, peer_pid
from resihp_agent.errors import StartFailed
from resihp_messages import MalformedMessage
from resihp_messages.attach import MAX_FRAME_BYTES, AttachFrame, parse_attach

log = structlog.get_logger(__name__)

_HEADER = struct.Struct(">I")


class Receiver(Protocol):
    """What frames are handed to. Methods never wait."""

    def frame(self, pid: int, frame: AttachFrame) -> None:
        """A valid frame of the process."""

    def closed(self, pid: int) -> None:
        """The process has closed its line, or was cut off."""


class AttachListener:
    """`start`, then serves until `close`."""

    def __init__(self, path: Path, receiver: Receiver) -> None:
        self._path, self._receiver = path, receiver
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self.num_malformed = 0

    async def start(self) -> None:
        """Raises `StartFailed` if the socket cannot be made."""
        try:
            sock = listening_socket(str(self._path))
        except OSError as error:
            raise StartFailed(f"cannot listen for attached jobs at {self._path}: {error.strerror}") from error
        self._server = await asyncio.start_unix_server(self._serve, sock=sock)
        log.info("listens_for_attached_jobs", path=str(self._path))

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for line in list(self._lines):
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        pid = peer_pid(writer.get_extra_info("socket"))
        try:
            while True:
                (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                if length > MAX_FRAME_BYTES:
                    raise MalformedMessage(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}")
                self._receiver.frame(pid, parse_attach(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # it closed the line, or this agent ends
        except MalformedMessage as error:
            self.num_malformed += 1
            log.warning("attached_frame_malformed", pid=pid, error=str(error))
        finally:
            self._lines.discard(task)
            writer.close()
            self._receiver.closed(pid)

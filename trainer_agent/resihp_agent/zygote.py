"""Client of the zygote: the process with torch imported that forks the node's rendezvous store and its workers.

Requests go over a Unix SOCK_SEQPACKET pair, one MessagePack map each, descriptors by SCM_RIGHTS
(docs/architecture.md). One request is outstanding at a time; `exited` notes come in between, unasked.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resihp_agent.errors import StartFailed
from resihp_messages import MalformedMessage, pack, unpack

_MAX_MESSAGE_BYTES = 1 << 16


class Zygote:
    """A running zygote. It exits, and kills its children, when this end of the socket closes: also if we are killed."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        sock: socket.socket,
        *,
        on_exit: Callable[[int, int | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._process = process
        self._sock = sock
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._one_request = asyncio.Lock()
        self._reply: asyncio.Future[dict[str, Any]] | None = None
        self._exit_codes: dict[int, asyncio.Future[int | None]] = {}
        self._lost = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._readable)

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        log_path: Path,
        on_exit: Callable[[int, int | None], None],
        on_lost: Callable[[str], None],
    ) -> Zygote:
        """Starts `command --control-fd N`. `on_exit(pid, exit_code)` for each child that ends, `on_lost(reason)` once.

        Raises `StartFailed` if the program cannot be run.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, log_path.open("ab") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--control-fd",
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C in the terminal is for the agent, which then stops its workers
                )
            except OSError as error:
                ours.close()
                raise StartFailed(f"cannot start the zygote ({' '.join(command)}): {error}") from error
        return cls(process, ours, on_exit=on_exit, on_lost=on_lost)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def store(self, host: str, *, timeout_s: float = 60.0) -> tuple[int, str]:
        """Fork a rendezvous store bound to `host`. Returns (pid, `host:port`). Raises `StartFailed`.

        The first request also waits for the zygote's imports, hence the long default.
        """
        reply = await self._request({"op": "store", "host": host}, (), timeout_s)
        return int(reply["pid"]), str(reply["address"])

    async def spawn(self, *, job: str, rank: int, descriptors: Sequence[int], timeout_s: float = 10.0) -> int:
        """Fork a worker with (link socket, progress page, log file). Returns its pid. Raises `StartFailed`."""
        reply = await self._request({"op": "spawn", "rank": rank, "job": job}, descriptors, timeout_s)
        return int(reply["pid"])

    async def exit_code(self, pid: int, *, timeout_s: float) -> int | None:
        """How a child ended, as in `subprocess`; None if the zygote does not say so in time."""
        code = self._exit_codes.setdefault(pid, self._loop.create_future())
        try:
            return await asyncio.wait_for(asyncio.shield(code), timeout_s)
        except TimeoutError:
            return None
        finally:
            self._exit_codes.pop(pid, None)

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Close the control socket and wait until the zygote is gone; kill it if it does not go."""
        self._lost = True
        self._loop.remove_reader(self._sock)
        self._sock.close()
        try:
            await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _request(self, request: dict[str, Any], descriptors: Sequence[int], timeout_s: float) -> dict[str, Any]:
        async with self._one_request:
            if self._lost:
                raise StartFailed("the zygote is gone")
            self._reply = self._loop.create_future()
            try:
                await self._send(pack(request), descriptors)
                reply = await asyncio.wait_for(self._reply, timeout_s)
            except TimeoutError:
                raise StartFailed(f"the zygote did not answer {request['op']!r} within {timeout_s} s") from None
            except OSError as error:
                raise StartFailed(f"the zygote does not listen: {error}") from error
            finally:
                self._reply = None
            if "error" in reply:
                raise StartFailed(f"the zygote could not {request['op']}: {reply['error']}")
            return reply

    async def _send(self, raw: bytes, descriptors: Sequence[int]) -> None:
        while True:
            try:
                socket.send_fds(self._sock, [raw], list(descriptors))
                return
            except BlockingIOError:
                writable = asyncio.Event()
                self._loop.add_writer(self._sock, writable.set)
                try:
                    await writable.wait()
                finally:
                    self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        while not self._lost:
            try:
                raw = self._sock.recv(_MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"control socket: {error}")
                return
            if not raw:
                self._lose("it closed its control socket")
                return
            self._handle(raw)

    def _handle(self, raw: bytes) -> None:
        try:
            message = unpack(raw)
        except MalformedMessage as error:
            self._lose(f"it sent a broken message: {error}")
            return
        if message["op"] == "exited":
            pid, code = int(message["pid"]), message["exit_code"]
            future = self._exit_codes.setdefault(pid, self._loop.create_future())
            if not future.done():
                future.set_result(None if code is None else int(code))
            self._on_exit(pid, code)
        elif self._reply is not None and not self._reply.done():
            self._reply.set_result(message)

    def _lose(self, reason: str) -> None:
        self._lost = True
        self._loop.remove_reader(self._sock)
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(StartFailed(f"the zygote is gone: {reason}"))
        self._on_lost(reason)


def child_ends() -> tuple[socket.socket, socket.socket]:
    """A connected pair for one worker's link: (agent's end, worker's end)."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def page_memory(size_bytes: int) -> int:
    """Anonymous shared memory for a progress page; the caller owns the descriptor."""
    fd = os.memfd_create("resihp-progress")
    os.ftruncate(fd, size_bytes)
    return fd

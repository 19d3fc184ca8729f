"""Ranks as processes of the launcher, and the line to each of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resihp_attach import wire
from resihp_attach.place import LAUNCH_FD
from resihp_cli.errors import CliError

_LINE_BYTES = 1 << 20


@dataclass(eq=False)
class LaunchedRank:
    """One process."""

    rank: int
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    stopped_s: float | None = None
    """Since when its process has been seen stopped (state T)."""

    def tell(self, frame: Mapping[str, Any]) -> None:
        """Never waits; a rank that is gone hears nothing."""
        if not self.writer.is_closing():
            self.writer.write(wire.encode(frame))

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """What the rank says, until its line ends or makes no sense."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError):
            while True:
                (length,) = wire.HEADER.unpack(await self.reader.readexactly(wire.HEADER.size))
                if length > _LINE_BYTES:
                    return
                yield json.loads(await self.reader.readexactly(length))

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        self.writer.close()


async def start(command: Sequence[str], rank: int, environment: Mapping[str, str]) -> LaunchedRank:
    """Raises `CliError` if the command cannot be run. Cancelled, it leaves no process: its last await is the start."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**environment, LAUNCH_FD: str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
            )
        except BaseException as error:
            writer.close()
            if isinstance(error, OSError):
                raise CliError(f"{command[0]}: {error.strerror}") from error
            raise
    return LaunchedRank(rank, process, reader, writer)


def environment(rank: int, world: int, master_port: int, base: Mapping[str, str]) -> dict[str, str]:
    """As torchrun sets it, so that scripts find themselves."""
    return {
        "OMP_NUM_THREADS": "1",  # the user's own value wins
        **base,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
    }


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


def is_stopped(pid: int) -> bool:
    """By a signal; one that is looked at with a debugger (state t) is not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False


def free_port() -> int:
    """For scripts that make a process group of their own besides; free at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])

"""A blocking client of the zygote: starts it with a worker program, spawns ranks, hears of exits."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resihp_messages import pack, unpack
from resihp_messages.page import PAGE_BYTES, ProgressPage
from resihp_trainer.zygote import DEFAULT_WORKER


@dataclass
class SpawnedWorker:
    """A forked worker: its pid, our end of its link, its progress page and log."""

    rank: int
    pid: int
    link: socket.socket
    page: ProgressPage
    log_path: Path

    def state(self) -> str:
        """State letter of the process table (`T`: stopped, `Z`: ended), empty if it is gone."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return stat.rpartition(")")[2].split()[0]


class ZygoteClient:
    """Owns one zygote process; `close` ends it and all its children."""

    def __init__(
        self,
        folder: Path,
        worker: str = DEFAULT_WORKER,
        *,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`folder`: for the logs; `environment`: added to this process's. Raises OSError."""
        self.folder = folder
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log_path = folder / "zygote.log"
        with theirs, self.log_path.open("wb") as log:
            command = [sys.executable, "-m", "resihp_trainer.zygote", "--control-fd", str(theirs.fileno())]
            self.process = subprocess.Popen(
                [*command, "--worker", worker],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.control = ours
        self.control.settimeout(timeout_s)
        self._links: list[socket.socket] = []
        self.exits: dict[int, int] = {}
        """pid -> exit code, as reported so far."""

    def request(self, request: dict[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """One request and its reply; exits reported meanwhile are noted."""
        socket.send_fds(self.control, [pack(request)], list(fds))
        while True:
            reply = self._receive()
            if reply["op"] != "exited":
                return reply

    def store(self) -> tuple[int, str]:
        """Fork a store on loopback: (pid, address)."""
        reply = self.request({"op": "store", "host": "127.0.0.1"})
        return reply["pid"], reply["address"]

    def spawn(self, rank: int, job: str = "test") -> SpawnedWorker:
        """Fork a worker for `rank`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        page_fd = os.memfd_create("page")
        os.ftruncate(page_fd, PAGE_BYTES)
        page = ProgressPage(mmap.mmap(page_fd, PAGE_BYTES))
        log_path = self.folder / f"rank{rank}.log"
        with theirs, log_path.open("ab") as log:
            reply = self.request({"op": "spawn", "rank": rank, "job": job}, (theirs.fileno(), page_fd, log.fileno()))
        os.close(page_fd)
        if reply["op"] != "spawned" or reply["rank"] != rank:
            raise RuntimeError(f"the zygote did not start rank {rank}: {reply}")
        self._links.append(ours)
        return SpawnedWorker(rank, reply["pid"], ours, page, log_path)

    def wait_exit(self, pid: int) -> int:
        """Exit code of a child. Raises `TimeoutError` from the socket if it does not come."""
        while pid not in self.exits:
            self._receive()
        return self.exits.pop(pid)

    def close(self, timeout_s: float = 10.0) -> int:
        """Close every socket and wait for the zygote: its exit code."""
        for end in (self.control, *self._links):
            end.close()
        return self.process.wait(timeout_s)

    def _receive(self) -> dict[str, Any]:
        raw = self.control.recv(1 << 16)
        if not raw:
            raise ConnectionError(f"zygote is gone:\n{self.log_path.read_text()}")
        reply: dict[str, Any] = unpack(raw)
        if reply["op"] == "exited":
            self.exits[reply["pid"]] = reply["exit_code"]
        return reply

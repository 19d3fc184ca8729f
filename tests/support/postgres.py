"""A real PostgreSQL for tests: one server per session, one empty database per test.

The server refuses to run as root, so it runs as `postgres` or `nobody` there. Without its binaries the test fails in CI
and is skipped elsewhere.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.servers import server_missing
from support.waiting import wait_for_blocking

__all__ = ["PostgresServer", "own_server", "postgres_server", "postgres_url"]


class PostgresServer:
    """A private server on loopback, without durability (tests only)."""

    def __init__(self, folder: Path, port: int, account: dict[str, Any]) -> None:
        self.folder = folder
        self.port = port
        self._account = account
        self._environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def initialise(self) -> None:
        arguments = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        self._run("initdb", "-D", str(self.folder / "data"), *arguments)

    def start(self) -> None:
        fast = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=127.0.0.1"]
        options = [part for setting in fast for part in ("-c", setting)]
        command = ["postgres", "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=log, stderr=log, **self._account
            )
        wait_for_blocking(self._ready, 20.0, every_s=0.02, what="PostgreSQL ready")

    def _ready(self) -> bool:
        command = ["pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False, env=self._environment, cwd=self.folder).returncode == 0

    def stop(self) -> None:
        """Fast shutdown: open sessions are ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)
            self._process = None

    def create_database(self) -> str:
        """A fresh empty database; returns its URL."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", name)
        return f"postgresql+asyncpg://postgres@127.0.0.1:{self.port}/{name}"

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, cwd=self.folder, env=self._environment, check=True, stdout=subprocess.DEVNULL, **self._account
        )


def _account() -> dict[str, Any]:
    """Whom the server runs as: ourselves, or a powerless user if we are root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.fail("PostgreSQL does not run as root, and there is neither a user postgres nor nobody", pytrace=False)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def own_server(folder: Path) -> PostgresServer:
    """A new server in `folder`, which must be reachable for other users; initialised, not started."""
    account = _account()
    if account:
        os.chown(folder, account["user"], account["group"])
    server = PostgresServer(folder, _free_port(), account)
    server.initialise()
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; use `postgres_url` for a database of your own."""
    missing = [name for name in ("initdb", "postgres", "pg_isready", "createdb") if shutil.which(name) is None]
    if missing:
        server_missing("PostgreSQL", f"put {', '.join(missing)} on PATH (package postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg_", dir="/tmp"))  # its parents must be open to the other user
    try:
        server = own_server(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of an empty database that only this test uses."""
    return postgres_server.create_database()

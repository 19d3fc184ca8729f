"""The connection to a NATS server, and what its state means for everybody who uses it.

Facts behind the choices (measured): the client gives up for good after a number of reconnection attempts unless told
otherwise; a first connect to an absent server never raises; `flush` while disconnected returns without error; errors of
permission arrive only in the error callback; a frozen server is noticed only by pings; some protocol errors make the
client close itself although reconnection is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from resihp_bus.credentials import credentials
from resihp_bus.delivery import log
from resihp_bus.port import BusRefused, BusUnavailable
from resihp_bus.settings import JetStreamSettings
from resihp_bus.stats import BusStats, RateLimit
from resihp_bus.streams import ensure_streams
from resihp_bus.tasks import being_cancelled

T = TypeVar("T")

_AUTHORIZATION = ("authorization", "authentication", "user authentication")
_ERRORS = (nats.errors.Error, OSError, TimeoutError)


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
        self.closed = False
        self.rate = RateLimit()
        self.on_change: list[Callable[[], None]] = []
        """Called after each connect and disconnect."""
        self.on_replaced: list[Callable[[], Awaitable[None]]] = []
        """Awaited when a new client has taken the place of a closed one: core subscriptions must be made again."""
        self._stats = stats
        self._credentials: dict[str, Any] = {}
        self._client = Client()
        self._up = asyncio.Event()
        self._attention = asyncio.Event()
        self._reason: Exception | None = None
        self._forbidden: set[str] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._guard: asyncio.Task[None] | None = None

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
        deadline = time.monotonic() + self.settings.connect_timeout_s
        self._credentials = credentials(self.settings, self.name)
        try:
            while not await self._open(deadline):
                if time.monotonic() >= deadline:
                    raise self._unreachable() from self._reason
            await self._provision(deadline)
        except BaseException:
            await self.close()
            raise
        self._guard = asyncio.get_running_loop().create_task(self._keep())

    async def wait_up(self, timeout_s: float) -> None:
        """Return once connected. Raises `BusUnavailable` after `timeout_s` or if the bus is closed."""
        deadline = time.monotonic() + timeout_s
        while not self.up:
            left = deadline - time.monotonic()
            if self.closed or left <= 0:
                state = "closed" if self.closed else "not connected"
                raise BusUnavailable(f"bus {self.settings.shown_url} is {state}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._up.wait(), left)
            if not self.up and not self.closed:  # the flag and the client disagree for a moment during a loss
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
        return any(f'"{subject.lower()}"' in text for text in self._forbidden)

    async def close(self) -> None:
        """Flush and disconnect. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self._guard is not None:
            self._attention.set()
            self._guard.cancel()  # the client may swallow this: the loop looks at `closed`, too
            await asyncio.wait({self._guard}, timeout=self.settings.api_timeout_s)
        if self._client.is_connected:
            with contextlib.suppress(*_ERRORS):
                await self._client.flush(timeout=1)
        if self.generation:
            await _discard(self._client)
        self._up.set()  # release waiters: they see `closed`
        self._notify()

    # --- connecting ---------------------------------------------------------------------------------------------

    async def _open(self, deadline: float) -> bool:
        """One attempt with a new client. Raises `BusRefused` for wrong credentials."""
        client = Client()
        left = max(0.05, deadline - time.monotonic())
        try:
            await asyncio.wait_for(client.connect(**self._options(client)), left)
            opened = bool(client.is_connected)
        except _ERRORS as error:
            if not isinstance(error, nats.errors.NoServersError | TimeoutError) or self._reason is None:
                self._reason = error
            opened = False
        except BaseException:
            await _discard(client)
            raise
        if not opened:
            await _discard(client)
            if self._reason is not None and any(word in str(self._reason).lower() for word in _AUTHORIZATION):
                raise BusRefused(f"bus {self.settings.shown_url}: {self._reason}") from self._reason
            await asyncio.sleep(min(self.settings.reconnect_wait_s, max(0.0, deadline - time.monotonic())))
            return False
        client.options["allow_reconnect"] = True
        client.options["max_reconnect_attempts"] = -1
        self._client = client
        self._connected()
        return True

    def _options(self, client: Client) -> dict[str, Any]:
        """A first attempt must fail soon and visibly; `_open` switches to unlimited reconnection afterwards."""
        s = self.settings

        async def disconnected() -> None:
            if client is self._client:
                self._disconnected()

        async def reconnected() -> None:
            if client is self._client and not self.closed:
                log.info("bus connected again", url=s.shown_url)
                self._connected()

        async def closed() -> None:
            self._attention.set()

        options: dict[str, Any] = {
            "servers": s.servers,
            "name": self.name,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": s.reconnect_wait_s,
            "connect_timeout": s.connect_timeout_s,
            "ping_interval": s.ping_interval_s,
            "max_outstanding_pings": 2,
            "pending_size": s.pending_bytes,
            "inbox_prefix": f"_INBOX_{self.name}",
            "error_cb": self._on_error,
            "disconnected_cb": disconnected,
            "reconnected_cb": reconnected,
            "closed_cb": closed,
        }
        if s.token is not None:
            options["token"] = s.token.get_secret_value()
        if s.nkey_seed is not None:
            options["nkeys_seed_str"] = s.nkey_seed.get_secret_value()
        if s.credentials is not None:
            options["user_credentials"] = s.credentials
        return options | self._credentials

    async def _provision(self, deadline: float) -> None:
        """JetStream may answer a little later than the port opens, and another may have to make the streams."""
        while True:
            try:
                await ensure_streams(self.js, self.settings)
                return
            except BusRefused:
                if self.settings.provision or time.monotonic() + 0.1 >= deadline:
                    raise  # else another identity is about to make them
            except _ERRORS as error:
                if not self.up:
                    raise BusUnavailable(f"bus {self.settings.shown_url}: lost while connecting ({error})") from error
                if time.monotonic() + 0.1 >= deadline:
                    raise BusRefused(
                        f"bus {self.settings.shown_url}: no answer from JetStream ({error}); start nats-server with -js"
                    ) from error
            await asyncio.sleep(0.1)

    def _unreachable(self) -> BusUnavailable:
        cause = self._reason
        text = str(cause or "") or "no answer"
        limit = f"gave up after {self.settings.connect_timeout_s:g} s"
        return BusUnavailable(f"bus {self.settings.shown_url}: {text} ({limit})")

    # --- keeping ------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """After every reconnection make the streams exist (memory streams die with the server), and replace a client
        that has closed itself."""
        provisioned = self.generation
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._attention.wait(), 1.0)
            self._attention.clear()
            if self.closed or being_cancelled():
                return
            try:
                if self._client.is_closed:
                    await self._replace()
                if self.up and provisioned != self.generation:
                    generation = self.generation
                    await ensure_streams(self.js, self.settings)
                    provisioned = generation
            except (*_ERRORS, BusRefused, BusUnavailable) as error:
                silent = self.rate.allow("keep")
                if silent is not None:
                    log.warning("bus connection needs attention", error=str(error), more_since_last_line=silent)

    async def _replace(self) -> None:
        self._disconnected()
        log.error("bus connection was closed by its client: connecting anew", url=self.settings.shown_url)
        if await self._open(time.monotonic() + self.settings.connect_timeout_s):
            for restore in tuple(self.on_replaced):
                await restore()

    def _connected(self) -> None:
        self.generation += 1
        self._up.set()
        self._attention.set()
        self._notify()

    def _disconnected(self) -> None:
        if not self._up.is_set() or self.closed:
            return
        self._up.clear()
        self._stats.disconnects += 1
        log.warning("bus disconnected", url=self.settings.shown_url)
        self._notify()

    def _notify(self) -> None:
        for task in tuple(self._waiting):
            task.cancel()
        for callback in tuple(self.on_change):
            callback()

    async def _on_error(self, error: Exception) -> None:
        self._stats.errors += 1
        text = str(error)
        if "permissions violation" in text.lower():
            self._forbidden.add(text.lower())
        if self.generation == 0:
            self._reason = error  # of a failed first connect: `connect` raises it
            return
        silent = self.rate.allow(f"{type(error).__name__}:{text[:40]}")
        if silent is not None:
            log.warning("bus error", error=text or type(error).__name__, more_since_last_line=silent)


async def _discard(client: Client) -> None:
    """Close a client whatever its state, transport included. Bounded: a full flush queue would hold it for ever."""
    with contextlib.suppress(*_ERRORS):
        await asyncio.wait_for(client.close(), 2.0)

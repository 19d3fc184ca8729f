"""Composition root: the only place of this room that names concrete adapters."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import structlog
import uvicorn
from fastapi import FastAPI

from resihp_bus import Bus, JetStreamBus
from resihp_chassis import PortInUse, Service, StartupError
from resihp_gateway.access import Access, TokenFile
from resihp_gateway.app import create_app
from resihp_gateway.beats import NewestBeats
from resihp_gateway.context import Gateway
from resihp_gateway.guard import RateLimit
from resihp_gateway.job_metrics import JobMetrics
from resihp_gateway.settings import GatewaySettings
from resihp_gateway.webhooks.config import Webhook, load
from resihp_gateway.webhooks.notifier import Notifier
from resihp_messages import Kind
from resihp_store import Store, StoreError

STORE_CHECK_S = 1.0
METRICS_EVERY = 5
"""Checks of the database between two looks at the jobs."""
_log = structlog.get_logger("gateway")


@dataclass
class StoreState:
    """Whether the database answered last time; read by the health endpoint."""

    answer: str = "not asked yet"

    @property
    def ok(self) -> bool | str:
        return self.answer == "ok" or self.answer


@dataclass(frozen=True)
class GatewayProcess:
    """Everything of one gateway, not yet connected."""

    gateway: Gateway
    app: FastAPI
    job_metrics: JobMetrics
    store_state: StoreState = field(default_factory=StoreState)


def bootstrap(
    service: Service[GatewaySettings], *, bus: Bus | None = None, store: Store | None = None
) -> GatewayProcess:
    """Build the gateway. Tests pass their own bus and store."""
    settings = service.settings
    gateway = Gateway(
        bus=bus or JetStreamBus(settings.bus, "gateway"),
        store=store or Store(settings.database_url),
        beats=NewestBeats(service.clock.monotonic),
        incarnation=service.incarnation,
        request_timeout_s=settings.request_timeout_s,
        heartbeat_s=settings.heartbeat_s,
        whatif_timeout_s=settings.whatif_timeout_s,
    )
    try:
        tokens = TokenFile(settings.tokens_file) if settings.tokens_file is not None else None
        access = Access(tokens, settings.anonymous_role)
    except ValueError as error:
        raise StartupError(str(error)) from error
    limit = RateLimit(settings.write_rate_per_s, settings.write_burst, service.clock.monotonic)
    app = create_app(gateway, service.health, service.metrics, access=access, limit=limit)
    job_metrics = JobMetrics(gateway)
    service.metrics.registry.register(job_metrics)
    process = GatewayProcess(gateway, app, job_metrics)
    service.watch_bus(gateway.bus)
    service.health.require("database", lambda: process.store_state.ok)
    return process


async def run_gateway(service: Service[GatewaySettings]) -> None:
    """Connect, serve until asked to stop, close. Raises `PortInUse`, `BusError` or `StoreError` if it cannot start."""
    process = bootstrap(service)
    gateway = process.gateway
    hooks = _webhooks(service.settings.webhooks_file)
    listener = _listener(service.settings)
    try:
        await gateway.store.open()
        process.store_state.answer = "ok"
        await gateway.bus.connect()
        await gateway.bus.listen(Kind.BEAT, gateway.beats.hear)
        async with (
            gateway.health.following(gateway.bus),
            httpx.AsyncClient() as client,
            Notifier(gateway.bus, hooks, client, service.metrics).running(),
            asyncio.TaskGroup() as tasks,
        ):
            watcher = tasks.create_task(_watch_store(process))
            server = _Server(_uvicorn_config(process.app, service.settings))
            serving = tasks.create_task(server.serve(sockets=[listener]))
            await server.up.wait()
            _log.info("listening", address="{}:{}".format(*listener.getsockname()[:2]))
            service.ready()
            await service.stopping.wait()
            gateway.closing.set()
            server.should_exit = True
            await serving
            watcher.cancel()
    finally:
        listener.close()
        await gateway.bus.close()
        await gateway.store.close()


def _webhooks(path: Path | None) -> tuple[Webhook, ...]:
    """Raises `StartupError` for a wrong file."""
    try:
        return load(path) if path is not None else ()
    except ValueError as error:
        raise StartupError(str(error)) from error


class _Server(uvicorn.Server):
    """The chassis owns the signals; `up` is set once requests are answered."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: FastAPI, settings: GatewaySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.close_timeout_s)),
    )


def _listener(settings: GatewaySettings) -> socket.socket:
    """The inherited socket, or a new one. Raises `PortInUse` or `StartupError`."""
    if settings.listen_fd is not None:
        try:
            return socket.socket(fileno=settings.listen_fd)
        except OSError as error:
            raise StartupError(f"RESIHP_GATEWAY_LISTEN_FD: {settings.listen_fd} is no socket: {error}") from error
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{settings.host}:{settings.port} is in use: set RESIHP_GATEWAY_PORT") from error
        raise StartupError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return listener


async def _watch_store(process: GatewayProcess) -> None:
    """Keep the readiness of the database, and the metrics of jobs, true."""
    turn = 0
    while True:
        try:
            await process.gateway.store.ping()
            if turn % METRICS_EVERY == 0:
                await process.job_metrics.refresh()
            turn += 1
            process.store_state.answer = "ok"
        except StoreError as error:
            process.store_state.answer = str(error)
        await asyncio.sleep(STORE_CHECK_S)

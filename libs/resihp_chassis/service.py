"""The life of a service process: settings, logs, health, main, drain, exit status."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic

import structlog

from resihp_bus.port import Bus, BusError
from resihp_bus.stats import BusStats
from resihp_chassis.clock import Clock, SystemClock
from resihp_chassis.errors import StartupError
from resihp_chassis.health import Health, HealthServer
from resihp_chassis.logs import configure_logs
from resihp_chassis.metrics import Metrics
from resihp_chassis.settings import S, load_settings

log: Any = structlog.get_logger("resihp.chassis")

TURN_S = 0.25
EXIT_OK, EXIT_BUG, EXIT_UNUSABLE = 0, 1, 2


class Service(Generic[S]):
    """What `main` gets: its settings, clock, health, metrics, and the wish to stop.

    `main(service)` connects its dependencies, calls `service.ready()`, and returns soon after `stopping` is set.
    """

    def __init__(self, name: str, settings: S, clock: Clock) -> None:
        self.name = name
        self.settings = settings
        self.clock = clock
        self.health = Health(clock, settings.stuck_after_s)
        self.metrics = Metrics(name.replace("-", "_"))
        self.stopping = asyncio.Event()
        self.started = False
        self._failure: str | None = None

    @property
    def incarnation(self) -> str:
        return self.settings.incarnation

    def ready(self) -> None:
        """Everything is connected and subscribed: from now on an error is a bug, not a failed start."""
        self.started = True
        self.health.set_state("ready")
        log.info("ready")

    def stop(self) -> None:
        """Ask the service to end in order, as SIGTERM does."""
        self.health.set_state("stopping")
        self.stopping.set()

    def fail(self, reason: str) -> None:
        """End in order, but with exit status 1: something that cannot be mended from inside has happened."""
        log.critical("service failed", reason=reason)
        self._failure = reason
        self.stop()

    @property
    def failure(self) -> str | None:
        return self._failure

    def watch_bus(self, bus: Bus) -> None:
        """Readiness and metrics of the bus."""
        self.health.require("bus", lambda: bus.connected or "not connected")
        stats = getattr(bus, "stats", None)
        if isinstance(stats, BusStats):
            self.metrics.export_bus(stats, lambda: bus.connected)


Main = Callable[[Service[S]], Awaitable[None]]


def run_service(
    name: str,
    settings_class: type[S],
    main: Main[S],
    *,
    startup_errors: tuple[type[Exception], ...] = (),
    clock: Clock | None = None,
    **overrides: Any,
) -> int:
    """Run `main` until it returns or a signal asks it to, and return the exit status for `sys.exit`.

    0: ended in order. 2, with one line on stderr: could not start (`StartupError`, `BusError`, `startup_errors` before
    `service.ready()`). 1: a bug, with its traceback in the log. `overrides` are settings that arguments have given.
    """
    try:
        settings = load_settings(settings_class, **overrides)
        configure_logs(
            level=settings.log_level, format=settings.log_format, service=name, incarnation=settings.incarnation
        )
        expected: tuple[type[Exception], ...] = (StartupError, BusError, *startup_errors)
        return asyncio.run(_run(Service(name, settings, clock or SystemClock()), main, expected))
    except StartupError as error:
        return _unusable(name, error)
    except KeyboardInterrupt:
        return EXIT_OK


async def _run(service: Service[S], main: Main[S], expected: tuple[type[Exception], ...]) -> int:
    settings = service.settings
    server = HealthServer(
        service.health, service.metrics.registry, host=settings.health_host, port=settings.health_port
    )
    log.info("starting", health=server.url, settings=repr(settings))
    if settings.announce_file is not None:
        _announce(settings.announce_file, service, server.url)
    ticker = asyncio.create_task(_tick(service))
    running = asyncio.ensure_future(main(service))
    _on_signals(service, running)
    try:
        return await _until_end(service, running, expected)
    finally:
        ticker.cancel()
        server.stop()
        log.info("stopped")


async def _until_end(service: Service[S], running: asyncio.Future[None], expected: tuple[type[Exception], ...]) -> int:
    stopping = asyncio.ensure_future(service.stopping.wait())
    either: set[asyncio.Future[Any]] = {running, stopping}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not running.done():
        log.info("draining", timeout_s=service.settings.drain_timeout_s)
        await asyncio.wait({running}, timeout=service.settings.drain_timeout_s)
    if not running.done():
        log.warning("drain timeout: cancelling", timeout_s=service.settings.drain_timeout_s)
        running.cancel()
        await asyncio.wait({running}, timeout=1.0)
    if not running.done() or running.cancelled():
        return EXIT_BUG if service.failure else EXIT_OK
    error = running.exception()
    if error is None:
        return EXIT_BUG if service.failure else EXIT_OK
    if isinstance(error, expected) and not service.started:
        return _unusable(service.name, error)
    log.critical("service ended by an error", exc_info=error)
    return EXIT_BUG


def _on_signals(service: Service[S], running: asyncio.Future[None]) -> None:
    def asked(number: signal.Signals) -> None:
        log.info("signal", name=number.name)
        if service.stopping.is_set():
            running.cancel()  # asked twice: no more patience
        service.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)


async def _tick(service: Service[S]) -> None:
    turn = service.health.watch("main_loop", service.settings.stuck_after_s)
    while True:
        turn()
        await asyncio.sleep(TURN_S)


def _announce(path: Path, service: Service[S], health_url: str) -> None:
    """Write, then rename: a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {"service": service.name, "pid": os.getpid(), "incarnation": service.incarnation, "health_url": health_url}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(facts))
    draft.replace(path)


def _unusable(name: str, error: BaseException) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"resihp {name}: {text}", file=sys.stderr, flush=True)
    return EXIT_UNUSABLE

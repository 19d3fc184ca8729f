"""Is the process alive, is it ready, and the HTTP endpoint that says so.

The endpoint runs in its own thread: it answers, and tells the truth, even when the main loop is stuck.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from resihp_chassis.clock import Clock
from resihp_chassis.errors import PortInUse

Check = Callable[[], bool | str]
"""True: fine. False, or a text with the reason: not."""


@dataclass(frozen=True)
class Report:
    """The answer of one endpoint: overall, and per part either `ok` or a reason."""

    ok: bool
    parts: dict[str, str]


class Health:
    """State behind /livez and /readyz. Written by the main loop, read by the endpoint's thread."""

    def __init__(self, clock: Clock, stuck_after_s: float) -> None:
        self._clock = clock
        self._turns: dict[str, tuple[float, float]] = {}
        self._checks: dict[str, Check] = {}
        self._state = "starting"
        self.watch("main_loop", stuck_after_s)

    def watch(self, name: str, limit_s: float) -> Callable[[], None]:
        """Register a loop that must turn at least every `limit_s`; call the result at each turn."""

        def turn() -> None:
            self._turns[name] = (self._clock.monotonic(), limit_s)

        turn()
        return turn

    def require(self, name: str, check: Check) -> None:
        """Ready only while `check` is true. It is called from another thread: read an attribute, do not compute."""
        self._checks[name] = check

    def set_state(self, state: str) -> None:
        """`starting`, `ready` or `stopping`; only `ready` can be ready."""
        self._state = state

    def live(self) -> Report:
        """Whether every watched loop turned in time."""
        now = self._clock.monotonic()
        parts = {
            name: "ok" if now - at <= limit else f"no turn for {now - at:.1f} s (limit {limit:g} s)"
            for name, (at, limit) in tuple(self._turns.items())
        }
        return Report(all(text == "ok" for text in parts.values()), parts)

    def ready(self) -> Report:
        """Whether the service does its work: state, and each dependency by name."""
        parts = {"state": "ok" if self._state == "ready" else self._state}
        for name, check in tuple(self._checks.items()):
            answer = check()
            parts[name] = "ok" if answer is True else str(answer or "not available")
        return Report(all(text == "ok" for text in parts.values()), parts)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the look-up of the host's full name, which waits for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every second: no log line each."""


class HealthServer:
    """/livez, /readyz (200 or 503, JSON) and /metrics (Prometheus). Raises `PortInUse`."""

    def __init__(self, health: Health, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._health = health
        self._metrics = make_wsgi_app(registry)
        try:
            self._server = make_server(host, port, self._answer, server_class=_Server, handler_class=_QuietHandler)
        except OSError as error:
            raise PortInUse(f"health endpoint {host}:{port}: {error.strerror or error}") from error
        self.url = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="health", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start_response)
            return answer
        if path not in ("/livez", "/readyz"):
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/livez /readyz /metrics\n"]
        report = self._health.live() if path == "/livez" else self._health.ready()
        start_response("200 OK" if report.ok else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps({"ok": report.ok, **report.parts}).encode()]

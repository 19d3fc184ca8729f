"""What the gateway counts about its own requests. Labels are bounded: methods, status classes, kinds of stream."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from resihp_chassis import Metrics
from resihp_gateway.live.hub import Hubs

STREAMS = {"/events": "events", "/api/v1/live": "live"}
METHODS = frozenset({"GET", "POST"})


class RequestMetrics:
    """Made with the application; the framework makes its layers only at the first request."""

    def __init__(self, metrics: Metrics, hubs: Hubs) -> None:
        self.requests = metrics.counter("requests", "Answered requests.", ("method", "status"))
        self.seconds = metrics.histogram("request_seconds", "Time to answer, streams left out.")
        self.open = metrics.gauge("streams_count", "Open event streams.", ("stream",))
        for name in STREAMS.values():
            self.open.labels(name)
        metrics.gauge("viewers_count", "Dashboards that are being fed.").set_function(lambda: hubs.num_viewers)


class Meter:
    """Counts and times requests; streams are counted while they are open."""

    def __init__(self, app: ASGIApp, *, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "other"
        stream = STREAMS.get(scope["path"])
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begun = time.perf_counter()
        if stream:
            self._metrics.open.labels(stream).inc()
        try:
            await self._app(scope, receive, counted)
        finally:
            if stream:
                self._metrics.open.labels(stream).dec()
            else:
                self._metrics.seconds.observe(time.perf_counter() - begun)
            self._metrics.requests.labels(method, f"{status // 100}xx").inc()

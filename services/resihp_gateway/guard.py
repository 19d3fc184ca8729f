"""What every answer and every write goes through: security headers, no writes from foreign pages, a rate limit.

Plain ASGI, so that event streams pass untouched.
"""

from __future__ import annotations

import ipaddress
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""`unsafe-inline` styles only: uPlot and the map place things with style attributes."""
MAX_CLIENTS = 4096


class RateLimit:
    """A bucket of `burst` writes per client that fills at `rate_per_s`. `clock` is monotonic seconds."""

    def __init__(self, rate_per_s: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate_per_s, float(burst), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """0 if the client may write now (and it is counted), else after how long it may."""
        now = self._clock()
        level, at = self._buckets.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - at) * self._rate)
        allowed = level >= 1.0
        self._buckets[client] = (level - 1.0 if allowed else level, now)
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - level) / self._rate


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, *, limit: RateLimit, unprotected: Iterable[str] = ()) -> None:
        self._app = app
        self._limit = limit
        self._unprotected = tuple(unprotected)
        """Paths whose page loads scripts from elsewhere (the framework's API browser): no content policy."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    if name != "Content-Security-Policy" or scope["path"] not in self._unprotected:
                        headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, guarded)
        else:
            await _refuse(scope["path"], refusal, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str, float] | None:
        """Status, detail and seconds to wait, or None if the request may go on."""
        if scope["method"] in SAFE:
            return None
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, f"writes from pages of {origin[:200]} are refused", 0.0
        if "authorization" not in headers and not _is_local_name(host):
            return 403, f"without a token, writes to the host name {host[:200]!r} are refused", 0.0
        client = scope["client"][0] if scope.get("client") else ""
        wait_s = self._limit.wait_s(headers.get("authorization", client))
        return (429, "too many writes", wait_s) if wait_s else None


def _is_local_name(host: str) -> bool:
    """An address or a name without dots. Anything else could be a foreign page that re-bound its name to us."""
    name = urlsplit(f"//{host}").hostname or ""
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".localhost")
    return True


async def _refuse(path: str, refusal: tuple[int, str, float], send: Send) -> None:
    status, detail, wait_s = refusal
    title = "Too many requests" if status == 429 else "Forbidden"
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "instance": path}
    headers = [(b"content-type", b"application/problem+json")]
    if wait_s:
        headers.append((b"retry-after", str(max(1, round(wait_s))).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})

"""A real Chromium, driven by Playwright: skipped with the reason where there is none, an error in CI."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
LOADED = ".link.live"


def executable() -> str:
    """Path of the browser; skips the test (fails it in CI) without one."""
    found = os.environ.get("RESIHP_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is on the PATH (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    path = executable()
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        launched = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield launched
        finally:
            await launched.close()


class Complaints:
    """What no page may do: errors on the console, exceptions, requests to other hosts."""

    def __init__(self, page: Any, url: str) -> None:
        self.found: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda e: self.found.append(f"exception: {e}"))
        page.on(
            "request",
            lambda r: self.found.append(f"foreign: {r.url}") if not r.url.startswith((url, "data:")) else None,
        )

    def _console(self, message: Any) -> None:
        # While the gateway is away the browser itself logs each refused connection: that is the case under test.
        if message.type in ("error", "warning") and "net::ERR_" not in message.text:
            self.found.append(f"{message.type}: {message.text}")


@asynccontextmanager
async def opened(url: str, path: str = "/", **context: Any) -> AsyncIterator[tuple[Any, Complaints]]:
    """A page in a browser of its own; fails at the end if there was anything to complain about."""
    async with browser() as launched:
        page = await (await launched.new_context(viewport={"width": 1440, "height": 900}, **context)).new_page()
        page.set_default_timeout(60_000)
        complaints = Complaints(page, url)
        await page.goto(url + path)
        yield page, complaints
        assert complaints.found == []

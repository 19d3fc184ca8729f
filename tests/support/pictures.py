"""Takes the screenshots of docs/images anew: `python -m support.pictures [NAME ...]` in tests/, with Chromium."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.browser import LOADED, browser
from support.dashboard import LARGE, MIDDLE, SMALL, Shape, dashboard

FOLDER = Path(__file__).parents[2] / "docs" / "images"
VIEW = {"width": 1440, "height": 900}
Prepare = Callable[[Any], Awaitable[None]]


async def _nothing(page: Any) -> None:
    """As it opens."""


async def _whatif(page: Any) -> None:
    """Pick a healthy device, and ask what if it stopped."""
    await page.get_by_role("gridcell", name="R1·S7·T2,").click()
    await page.get_by_role("button", name="Ask").click()
    await page.get_by_text("With the best plan").wait_for(timeout=60_000)


async def _change(page: Any) -> None:
    await page.locator(".feed").get_by_role("link", name="plan changed").first.click()
    await page.locator(".proof li.ok").nth(3).wait_for()
    await page.locator(".diff svg").first.wait_for()


async def _incident(page: Any) -> None:
    """Pick the device that stopped."""
    await page.get_by_role("gridcell").first.focus()
    await page.keyboard.press("n")
    await page.keyboard.press("Enter")
    await page.locator(".device-card dl").wait_for()


async def _history(page: Any) -> None:
    await page.get_by_role("link", name="History").click()
    await page.locator(".changes tbody tr").nth(2).wait_for()


PICTURES: dict[str, tuple[Shape, str, Prepare]] = {
    "8-light": (SMALL, "light", _nothing),
    "8-dark": (SMALL, "dark", _nothing),
    "256-light": (MIDDLE, "light", _nothing),
    "256-dark": (MIDDLE, "dark", _nothing),
    "4096-light": (LARGE, "light", _nothing),
    "4096-dark": (LARGE, "dark", _nothing),
    "256-incident": (MIDDLE, "light", _incident),
    "256-whatif": (MIDDLE, "light", _whatif),
    "change": (MIDDLE, "light", _change),
    "history": (MIDDLE, "dark", _history),
}


UNTOLD = {"256-whatif"}
"""Before anything went wrong."""


async def take(names: list[str]) -> None:
    """One gateway per size and story, one page per picture."""
    stories = dict.fromkeys((PICTURES[n][0], n not in UNTOLD) for n in names)
    for shape, told in stories:
        with tempfile.TemporaryDirectory() as folder:
            async with dashboard(Path(folder), shape, told=told) as (server, _), browser() as launched:
                for name in (n for n in names if (PICTURES[n][0], n not in UNTOLD) == (shape, told)):
                    _, theme, prepare = PICTURES[name]
                    context = await launched.new_context(viewport=VIEW, color_scheme=theme, reduced_motion="reduce")
                    page = await context.new_page()
                    page.set_default_timeout(60_000)
                    await page.goto(server.url)
                    await page.wait_for_selector(LOADED)
                    await page.locator("[data-rank]").nth(shape.size - 1).wait_for()
                    await page.wait_for_function("document.querySelectorAll('.cell.unknown').length === 0")
                    await page.locator(".u-over").wait_for()
                    await prepare(page)
                    await page.evaluate("document.activeElement.blur()")
                    await page.screenshot(
                        path=FOLDER / f"dashboard-{name}.png", full_page=name in ("change", "history")
                    )
                    await context.close()
                    print(name, flush=True)


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1:] or list(PICTURES)))

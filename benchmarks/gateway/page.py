"""The dashboard of a big job in a real browser: `python -m benchmarks.gateway.page [--devices 4096] [--viewers 10]`.

First paint (and the whole map drawn) on a fresh browser; what an update costs the browser's main thread; what a viewer
costs the gateway, against the same time without viewers. Writes benchmarks/results/dashboard.md. Needs Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.gateway.big import JOB, BigJob
from benchmarks.gateway.running import Running, gateway
from benchmarks.report import machine, table, write
from resihp_bus import JetStreamBus, JetStreamSettings
from resihp_cli.run_folder import RunFolder
from resihp_store import Store
from resihp_store.revisions import upgrade

OPENINGS = 5
"""Times that the page is opened."""
EVERY_S = 1.0
WATCH = """
window.drawn = 0; window.long = [];
const note = (list) => window.long.push(...list.getEntries().map((e) => e.duration));
new PerformanceObserver(note).observe({type: "longtask"});
const check = () => {
  if (document.querySelectorAll("[data-rank]").length >= DEVICES) window.drawn = performance.now();
  else requestAnimationFrame(check);
};
requestAnimationFrame(check);
"""


@dataclass(frozen=True)
class Opening:
    """Milliseconds from the navigation."""

    first_paint_ms: float
    drawn_ms: float
    """Until a cell for every device is there."""


@dataclass(frozen=True)
class Updates:
    """What updates cost the page, in milliseconds of its main thread."""

    count: int
    mean_ms: float
    """All tasks, over the number of updates: script, style, layout, paint."""
    script_ms: float
    longest_task_ms: float
    """Of those above 50 ms (browsers report no others); 0: none."""


@asynccontextmanager
async def playing(running: Running, url: str, devices: int, changing: float) -> AsyncIterator[BigJob]:
    bus, store = JetStreamBus(JetStreamSettings(url=running.bus_url), "bench"), Store(url)
    await bus.connect()
    job = BigJob(devices, bus, store, changing)
    await job.begin()
    task = asyncio.create_task(job.play(EVERY_S))
    try:
        yield job
    finally:
        task.cancel()
        await asyncio.wait({task})
        await bus.close()
        await store.close()


async def open_once(launched: Any, url: str, devices: int) -> Opening:
    """In a context of its own, so that nothing is cached."""
    context = await launched.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = await context.new_page()
    await page.add_init_script(WATCH.replace("DEVICES", str(devices)))
    await page.goto(f"{url}/?job={JOB}", wait_until="commit")
    await page.wait_for_function("window.drawn > 0", timeout=120_000)
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
    await page.wait_for_function(f"({paint}) > 0", timeout=120_000)
    found = Opening(await page.evaluate(paint), await page.evaluate("window.drawn"))
    await context.close()
    return found


async def watch_updates(launched: Any, url: str, devices: int, seconds: float, job: BigJob) -> Updates:
    context = await launched.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
    page = await context.new_page()
    await page.add_init_script(WATCH.replace("DEVICES", str(devices)))
    await page.goto(f"{url}/?job={JOB}")
    await page.wait_for_function("window.drawn > 0", timeout=120_000)
    await asyncio.sleep(3 * EVERY_S)  # what opening costs is over
    session = await context.new_cdp_session(page)
    await session.send("Performance.enable")
    await page.evaluate("window.long.length = 0")
    before, first = await _spent(session), job.iteration
    await asyncio.sleep(seconds)
    after, count = await _spent(session), job.iteration - first
    longest = await page.evaluate("Math.max(0, ...window.long)")
    await context.close()
    per_update = {name: (after[name] - before[name]) * 1e3 / count for name in before}
    return Updates(count, per_update["TaskDuration"], per_update["ScriptDuration"], longest)


async def _spent(session: Any) -> dict[str, float]:
    """Seconds of the main thread so far."""
    metrics = (await session.send("Performance.getMetrics"))["metrics"]
    return {m["name"]: m["value"] for m in metrics if m["name"] in ("TaskDuration", "ScriptDuration")}


async def cores(running: Running, viewers: int, seconds: float) -> float:
    """Processor time of the gateway over wall time, with so many viewers of the live stream."""

    async def look(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/api/v1/live", params={"job": JOB}) as response:
            async for _ in response.aiter_raw():
                pass

    async with httpx.AsyncClient(base_url=running.url, timeout=60, trust_env=False) as client:
        tasks = [asyncio.create_task(look(client)) for _ in range(viewers)]
        await asyncio.sleep(3 * EVERY_S)
        used, begun = running.processor_s, time.monotonic()
        await asyncio.sleep(seconds)
        found = (running.processor_s - used) / (time.monotonic() - begun)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


async def measure(devices: int, viewers: int, seconds: float, changing: float, browser: str) -> str:
    """The body of the result file."""
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory(prefix="resihp-bench-") as name:
        folder = RunFolder(Path(name))
        folder.logs.mkdir(parents=True)
        await upgrade(folder.database_url)
        async with (
            gateway(folder, folder.database_url) as running,
            playing(running, folder.database_url, devices, changing) as job,
            async_playwright() as driver,
        ):
            idle = await cores(running, 0, seconds)
            one, many = await cores(running, 1, seconds), await cores(running, viewers, seconds)
            openings = []
            for _ in range(OPENINGS):  # a new browser each time: nothing is compiled or cached
                launched = await driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
                openings.append(await open_once(launched, running.url, devices))
                await launched.close()
            launched = await driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
            updates = await watch_updates(launched, running.url, devices, seconds, job)
            await launched.close()
    rows = [
        ("first contentful paint", f"median {median(o.first_paint_ms for o in openings):.0f} ms, "
         f"longest {max(o.first_paint_ms for o in openings):.0f} ms", "800 ms"),
        ("every device drawn", f"median {median(o.drawn_ms for o in openings):.0f} ms, "
         f"longest {max(o.drawn_ms for o in openings):.0f} ms", ""),
        ("main thread per update", f"{updates.mean_ms:.1f} ms ({updates.script_ms:.1f} ms of it script)", "100 ms"),
        ("longest task while watching", f"{updates.longest_task_ms:.0f} ms" if updates.longest_task_ms
         else "below 50 ms", "100 ms"),
        ("gateway, nobody looks", f"{idle:.3f} cores", ""),
        ("gateway, one viewer more", f"{one - idle:.3f} cores", "0.05 cores"),
        (f"gateway, {viewers} viewers: each", f"{(many - idle) / viewers:.4f} cores", "0.05 cores"),
    ]  # fmt: skip
    return (
        f"A job of {devices:,} devices, played (nobody trains): one beat per node, scores of all devices and one "
        f"iteration per {EVERY_S:g} s; {changing:.0%} of the cells change their colour with each. {OPENINGS} openings, "
        f"each in a new browser; {updates.count} updates watched; {seconds:g} s per figure of the gateway. Browser "
        "(without GPU), gateway, nats-server and player share the machine.\n\n"
        + table(("what", "measured", "bound"), rows)
    )


async def main(given: argparse.Namespace, browser: str) -> None:
    facts = machine()
    body = await measure(given.devices, given.viewers, given.seconds, given.changing, browser)
    command = (
        f"python -m benchmarks.gateway.page --devices {given.devices} --viewers {given.viewers} "
        f"--seconds {given.seconds:g} --changing {given.changing:g}"
    )
    print(write("dashboard", "Dashboard", command, facts, body).read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.page", description="Measure the dashboard.")
    parser.add_argument("--devices", type=int, default=4096)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--changing", type=float, default=0.2)
    os.environ.setdefault("RESIHP_LOG_LEVEL", "warning")
    named = os.environ.get("RESIHP_CHROMIUM")
    path = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        parser.error("no Chromium on the PATH (or in RESIHP_CHROMIUM)")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(parser.parse_args(), path))

"""Every list and filter over a long past, asked for over HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx

from benchmarks.gateway.filled import JOB, RARE
from benchmarks.gateway.running import Running
from benchmarks.report import percentile

REPEATS = 40
LISTS = (
    ("incidents, newest 50", f"/incidents?job={JOB}&sort=newest&limit=50"),
    ("incidents of a device", f"/incidents?job={JOB}&device=7&sort=newest&limit=50"),
    ("incidents of a kind", f"/incidents?job={JOB}&kind=device_slow&limit=50"),
    ("incidents of a rare kind", f"/incidents?job={JOB}&kind=state_diverged&limit=50"),
    ("open incidents (none)", f"/incidents?job={JOB}&state=open"),
    ("incidents, any job, newest 50", "/incidents?sort=newest&limit=50"),
    ("changes, newest 50", f"/reconfigurations?job={JOB}&sort=newest&limit=50"),
    ("changes of a device", f"/reconfigurations?job={JOB}&device=7&limit=50"),
    ("changes of a kind", f"/reconfigurations?job={JOB}&kind=device_slow&sort=newest&limit=50"),
    ("changes of a rare kind", f"/reconfigurations?job={JOB}&kind=state_diverged&sort=newest&limit=50"),
    ("rejected changes (none)", f"/reconfigurations?job={JOB}&status=rejected"),
    ("changes since a time", f"/reconfigurations?job={JOB}&since=2026-01-05T00:00:00Z&limit=50"),
    (
        "changes of a device, kind and time",
        f"/reconfigurations?job={JOB}&device=7&kind=device_slow&since=2026-01-03T00:00:00Z&limit=50",
    ),
    ("changes, any job, newest 50", "/reconfigurations?sort=newest&limit=50"),
    ("one change in full", "/reconfigurations/r0000050"),
    ("an early plan", f"/plans?job={JOB}&epoch=50"),
    ("newest 50 events", f"/events?job={JOB}&limit=50"),
    ("events of a rare name", f"/events?name={RARE}&limit=50"),
    ("events of a rare name and job", f"/events?job={JOB}&name={RARE}&limit=50"),
    ("events in the middle of the log", f"/events?job={JOB}&before=500000&limit=50"),
    ("audit trail (20 requests)", f"/audit?job={JOB}&limit=50"),
    ("audit trail, any job", "/audit?limit=50"),
    ("decisions, newest 50", f"/jobs/{JOB}/decisions?limit=50"),
)


@dataclass(frozen=True)
class Timing:
    """One list, asked for one time after the other."""

    what: str
    median_ms: float
    p95_ms: float
    processor_ms: float
    """Of the gateway, per request: what a quiet machine would take, if nothing waits."""
    num_bytes: int


async def lists(running: Running) -> list[Timing]:
    """Each list `REPEATS` times; and the changes page by page to the end."""
    rows = []
    async with httpx.AsyncClient(base_url=f"{running.url}/api/v1", timeout=60, trust_env=False) as client:
        for what, path in LISTS:
            await client.get(path)  # statements are prepared once per connection
            used = running.processor_s
            answers = [await _timed(client, path) for _ in range(REPEATS)]
            rows.append(_timing(what, answers, running.processor_s - used))
        used = running.processor_s
        answers = await _pages(client)
        rows.append(_timing("changes, page by page to the end (each page)", answers, running.processor_s - used))
    return rows


async def _timed(client: httpx.AsyncClient, path: str) -> tuple[float, httpx.Response]:
    begun = time.perf_counter()
    response = await client.get(path)
    taken_ms = (time.perf_counter() - begun) * 1e3
    response.raise_for_status()
    return taken_ms, response


async def _pages(client: httpx.AsyncClient) -> list[tuple[float, httpx.Response]]:
    path: str | None = f"/reconfigurations?job={JOB}&sort=newest&limit=50"
    found = []
    while path is not None:
        found.append(await _timed(client, path))
        link = found[-1][1].links.get("next")
        path = link["url"].removeprefix("/api/v1") if link else None
    return found


def _timing(what: str, answers: list[tuple[float, httpx.Response]], processor_s: float) -> Timing:
    taken = [ms for ms, _ in answers]
    return Timing(
        what,
        percentile(taken, 50),
        percentile(taken, 95),
        processor_s * 1e3 / len(answers),
        max(len(r.content) for _, r in answers),
    )

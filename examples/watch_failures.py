"""Prints every failure and every change of plan of a running system, as they happen.

Run `resihp up` (or `resihp demo`) in one terminal and this in another:

    python examples/watch_failures.py http://127.0.0.1:8765

It reads server-sent events and resumes where it left off after a broken connection, so nothing is missed or
shown twice.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx

SHOWN = ("WorkerLost", "WorkerFrozen", "NodeLost", "LinkLost", "ReconfigurationPlanned", "ReconfigurationApplied")


def events(gateway: str) -> Iterator[dict[str, Any]]:
    """All events from now on, for ever."""
    last_id = ""
    while True:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        try:
            with httpx.stream("GET", f"{gateway}/events", headers=headers, timeout=60.0) as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "id":
                        last_id = value
                    elif field == "data":
                        yield json.loads(value)
        except httpx.TransportError as error:
            print(f"gateway away ({error}); trying again", file=sys.stderr)
            time.sleep(1.0)


def line(event: dict[str, Any]) -> str:
    body = event["body"]
    if event["name"] == "ReconfigurationPlanned":
        return f"plan {event['epoch']}: {body['difference']}"
    if event["name"] == "ReconfigurationApplied":
        phases = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in body["phases_s"].items())
        return f"running plan {event['epoch']} ({phases}); proof {'holds' if all(body['proof'].values()) else 'FAILED'}"
    verdict = body["verdict"]
    return f"{verdict['fault']}: rank {', '.join(map(str, verdict['ranks']))} on {verdict['node']}; {body['advice']}"


def main() -> None:
    gateway = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8765"
    for event in events(gateway):
        if event["name"] in SHOWN:
            print(f"{event['occurred_at']}  {event['job']}  {line(event)}", flush=True)


if __name__ == "__main__":
    main()

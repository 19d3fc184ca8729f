"""The dashboard's stream: every fact at once, then what changes; and the parts it is made of."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from resihp_gateway.live.facts import _shares_cores
from resihp_gateway.live.health import STOPPED, UNKNOWN
from resihp_gateway.live.hub import Hubs
from resihp_gateway.live.mailbox import MAX_APPENDED, Mailbox
from resihp_gateway.live.places import plan_map
from resihp_gateway.live.rates import bound_now, bounds, healthy_rate
from resihp_store import IterationRecord
from support.dashboard import JOB, SMALL, Story
from support.gateway import AFTER_LOSS, HEALTHY, TestGateway, open_gateway
from support.store import reconfiguration


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    async with open_gateway(tmp_path, seeded=False) as gateway:
        found = Story(SMALL, gateway)
        await found.begin()
        await found.beat()
        yield found


class Viewer:
    """Reads the stream into the newest value of each fact, as the page does."""

    def __init__(self, gateway: TestGateway) -> None:
        self._frames = Hubs(gateway.gateway).stream(JOB)
        self.facts: dict[str, Any] = {}
        self.points: list[Any] = []

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(120):
            while not condition(self):
                for frame in (await anext(self._frames)).decode().split("\n\n"):
                    if not frame.startswith("event: "):
                        continue
                    name, data = frame.split("\n", 1)
                    value = json.loads(data.removeprefix("data: "))
                    if name == "event: points":
                        self.points = value["points"] if value["whole"] else self.points + value["points"]
                    self.facts[name.removeprefix("event: ")] = value

    async def close(self) -> None:
        await self._frames.aclose()  # type: ignore[attr-defined]

    def health(self) -> bytes:
        return base64.b64decode(self.facts["health"])


async def test_everything_at_once_then_what_changes(story: Story) -> None:
    viewer = Viewer(story.gateway)
    await viewer.until(lambda v: "control" in v.facts)
    assert set(viewer.facts) == {
        "job", "map", "rates", "points", "health", "incidents", "reconfigurations", "control"
    }  # fmt: skip
    assert (viewer.facts["map"]["epoch"], viewer.facts["incidents"]) == (1, [])
    assert [p[0] for p in viewer.points] == list(range(1, 121))
    assert all(90 <= code <= 100 for code in viewer.health())
    await story.stop_device(3)
    await viewer.until(lambda v: v.health()[3] == STOPPED and v.facts["map"]["epoch"] == 2 and v.facts["incidents"])
    assert viewer.facts["incidents"][0]["ranks"] == [3]
    assert viewer.facts["map"]["ghosts"] == {"3": [0, 1, 1]}
    await story.train(5)
    await viewer.until(lambda v: len(v.points) == 125)
    assert [p[0] for p in viewer.points] == list(range(1, 126))
    await viewer.close()


async def test_a_long_past_is_not_read_as_a_whole(story: Story) -> None:
    """The map, the first plan (for what is healthy) and the newest ones are enough."""
    for _ in range(25):
        story.plan = replace(story.plan, epoch=story.plan.epoch + 1)
        async with story.work() as work:
            await story._issue(work, datetime.now(UTC), mode="planned", reason="again")
    viewer = Viewer(story.gateway)
    await viewer.until(lambda v: "control" in v.facts)
    assert viewer.facts["map"]["epoch"] == 26
    assert sorted(map(int, viewer.facts["rates"]["bounds"]))[:2] == [1, 7]
    assert viewer.facts["rates"]["healthy"] > 0
    await viewer.close()


async def test_two_viewers_share_the_work_and_the_last_one_ends_it(story: Story) -> None:
    hubs = Hubs(story.gateway.gateway)
    streams = [hubs.stream(JOB) for _ in range(2)]
    for stream in streams:
        await anext(stream)
        assert b"event: map" in await anext(stream)
    assert hubs.num_viewers == 2
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
    assert hubs.num_viewers == 0
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("live ")]


async def test_without_beats_nothing_counts_as_healthy(story: Story) -> None:
    story.gateway.gateway.beats._newest.clear()
    viewer = Viewer(story.gateway)
    await viewer.until(lambda v: "health" in v.facts)
    assert set(viewer.health()) == {UNKNOWN}
    await viewer.close()


async def test_a_database_that_is_away_is_told(story: Story, tmp_path: Path) -> None:
    viewer = Viewer(story.gateway)
    await viewer.until(lambda v: "control" in v.facts)
    file = tmp_path / "resihp.db"
    away = file.rename(tmp_path / "away.db")
    for extra in tmp_path.glob("resihp.db-*"):
        extra.rename(tmp_path / f"x{extra.name}")
    await story.gateway.gateway.store.close()
    await viewer.until(lambda v: "stale" in v.facts)
    assert viewer.facts["stale"]["reason"]
    await story.gateway.gateway.store.close()
    away.rename(file)
    await viewer.until(lambda v: v.facts["stale"] is None)
    await viewer.close()


async def test_mailbox_keeps_the_newest_fact_and_every_point() -> None:
    box = Mailbox()
    for k in range(3):
        box.put("health", b"h%d;" % k)
        box.append(b"p%d;" % k)
    await box.wait()
    assert box.take() == b"h2;p0;p1;p2;"
    assert box.take() == b""
    for _ in range(MAX_APPENDED + 1):
        box.append(b"x")
    assert box.overflowed


def test_a_device_that_left_keeps_its_place_on_the_map() -> None:
    found = plan_map([HEALTHY, AFTER_LOSS], range(9))
    assert found["ghosts"] == {3: [0, 1, 1]}
    assert found["pool"] == [8]
    assert found["replicas"][0]["stages"][1]["ranks"] == [2]


def test_a_job_that_this_version_would_refuse_is_still_shown() -> None:
    assert _shares_cores({"name": "j"}) is True
    assert _shares_cores({"name": "j", "backend": "nccl"}) is False
    assert _shares_cores({"name": "j", "gone": 1}) is False


def rows(*rates: float) -> list[IterationRecord]:
    return [IterationRecord("j", k + 1, 1, None, 1.0, int(rate), 1, 1) for k, rate in enumerate(rates)]


def test_rates() -> None:
    assert healthy_rate(rows(1, 2, 100, 90)) is None
    assert healthy_rate(rows(1, 2, 100, 90, 110)) == 100
    assert bounds([HEALTHY, AFTER_LOSS], [], 800.0) == {1: 800.0, 2: 700.0}
    assert bound_now(800.0, 8, AFTER_LOSS, {5: 0.5, 6: 1.3}, set(range(8)) - {3}) == pytest.approx(650.0)
    told = [reconfiguration("j", new_epoch=AFTER_LOSS.epoch, speed_share=1.0)]
    assert bounds([HEALTHY, AFTER_LOSS], told, 800.0) == {1: 800.0, 2: 800.0}
    assert bound_now(800.0, 8, AFTER_LOSS, {}, set(range(8)) - {3}, shares_cores=True) == 800.0
    assert bound_now(800.0, 8, AFTER_LOSS, {}, set(), shares_cores=True) == 0.0
    assert bound_now(None, 8, AFTER_LOSS, {}, set()) is None

"""Metrics of running jobs: bounded labels, series that go when they mean nothing any more."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from resihp_gateway.job_metrics import JobMetrics
from resihp_store import JobState
from support.dashboard import JOB, SMALL, Story
from support.gateway import open_gateway


async def test_series_come_and_go(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, seeded=False) as gateway:
        story = Story(SMALL, gateway)
        await story.begin()
        await story.stop_device(3)
        story.p[5] = 0.5
        await story.beat()
        metrics = JobMetrics(gateway.gateway)
        registry = CollectorRegistry()
        registry.register(metrics)

        async def shown() -> str:
            await metrics.refresh()
            return generate_latest(registry).decode()

        text = await shown()
        label = f'job="{JOB}"'
        assert f"resihp_gateway_job_iterations_count{{{label}}} 120.0" in text
        assert f'resihp_gateway_device_speed_ratio{{{label},rank="3"}} 0.0' in text
        assert f'resihp_gateway_device_speed_ratio{{{label},rank="5"}} 0.4' in text
        assert f'resihp_gateway_job_devices_count{{{label},state="lost"}} 1.0' in text
        assert 'rank="1"' not in text  # healthy devices have no series of their own
        story.p[5] = 1.0
        await story.beat()
        assert 'rank="5"' not in await shown()
        async with story.work() as work:
            await work.set_job(JOB, JobState.FINISHED)
        assert label not in await shown()

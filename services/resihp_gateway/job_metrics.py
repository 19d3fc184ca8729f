"""Metrics about running jobs, from the record and the scores. Series go when a job ends or a device is well again, so
the set of labels stays bounded."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from resihp_gateway.context import Gateway
from resihp_gateway.picture import HEALTHY_P, speed
from resihp_store import DeviceState, JobState, history, queries

MAX_DEVICES = 256
"""Devices with a series of their own, over all jobs; the worst ones."""
RECENT = 5


@dataclass(frozen=True)
class _Job:
    committed: int
    tokens_per_s: float | None
    open_incidents: int
    devices: dict[str, int]
    ailing: dict[int, float] = field(default_factory=dict)
    """Rank -> p of devices that are not healthy."""


class JobMetrics(Collector):
    """`refresh` reads (in the event loop), `collect` only tells: it is called from the health endpoint's thread."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._jobs: dict[str, _Job] = {}

    async def refresh(self) -> None:
        """Look at every running job. Raises `StoreError`."""
        found = {}
        async with self._gateway.store.read() as connection:
            for record in await queries.jobs(connection, states=[JobState.RUNNING]):
                devices = await queries.devices(connection, record.job)
                after = max(0, record.committed - RECENT)
                rates = [
                    i.tokens_per_s for i in await queries.iterations(connection, record.job, after=after, limit=RECENT)
                ]
                page = history.Page(limit=1000, newest_first=True)
                incidents = await history.incidents(connection, page, job=record.job, is_open=True)
                scores = self._gateway.health.newest(record.job)
                p = {d.rank: speed(d, scores.get(d.rank)) for d in devices if d.state is not DeviceState.STANDBY}
                found[record.job] = _Job(
                    record.committed,
                    statistics.harmonic_mean(rates) if rates and min(rates) > 0 else None,
                    len(incidents),
                    dict(Counter(str(d.state) for d in devices)),
                    {rank: value for rank, value in p.items() if value < HEALTHY_P},
                )
        self._jobs = found

    def collect(self) -> Iterable[Metric]:
        jobs = self._jobs
        committed = _gauge("job_iterations_count", "Committed iterations of a running job.", "job")
        rate = _gauge("job_throughput_tokens_per_second", "Over the newest iterations.", "job")
        opened = _gauge("job_open_incidents_count", "Incidents that are not closed.", "job")
        devices = _gauge("job_devices_count", "Devices by state.", "job", "state")
        ailing = _gauge("device_speed_ratio", "p of devices that are not healthy; 0 is stopped.", "job", "rank")
        for name, job in jobs.items():
            committed.add_metric([name], job.committed)
            opened.add_metric([name], job.open_incidents)
            if job.tokens_per_s is not None:
                rate.add_metric([name], job.tokens_per_s)
            for state in DeviceState:
                devices.add_metric([name, str(state)], job.devices.get(str(state), 0))
        worst = sorted((p, name, rank) for name, job in jobs.items() for rank, p in job.ailing.items())
        for p, name, rank in worst[:MAX_DEVICES]:
            ailing.add_metric([name, str(rank)], p)
        return (committed, rate, opened, devices, ailing)


def _gauge(what: str, help: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"resihp_gateway_{what}", help, labels=labels)

"""Metrics: one registry per process; names are `resihp_<room>_<what>_<unit>` and listed in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from resihp_bus.stats import BusStats

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """Makes this room's metrics, all under `resihp_<room>_`. Raises ValueError for a name that is taken."""

    def __init__(self, room: str) -> None:
        self.room = room
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

    def counter(self, what: str, help: str, labels: Iterable[str] = ()) -> Counter:
        """`what` ends in its unit; Prometheus adds `_total`."""
        return Counter(f"resihp_{self.room}_{what}", help, tuple(labels), registry=self.registry)

    def gauge(self, what: str, help: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(f"resihp_{self.room}_{what}", help, tuple(labels), registry=self.registry)

    def histogram(self, what: str, help: str, labels: Iterable[str] = ()) -> Histogram:
        """`what` ends in `_seconds`."""
        name = f"resihp_{self.room}_{what}"
        return Histogram(name, help, tuple(labels), registry=self.registry, buckets=LATENCY_BUCKETS_S)

    def export_bus(self, stats: BusStats, connected: Callable[[], bool]) -> None:
        """Publish a bus's counters as `resihp_<room>_bus_<what>_total` and its state as `..._bus_connected`."""
        self.registry.register(_BusCollector(self.room, stats, connected))


class _BusCollector(Collector):
    def __init__(self, room: str, stats: BusStats, connected: Callable[[], bool]) -> None:
        self._prefix = f"resihp_{room}_bus"
        self._stats = stats
        self._connected = connected

    def collect(self) -> Iterable[Metric]:
        for what, value in self._stats.as_dict().items():
            yield CounterMetricFamily(f"{self._prefix}_{what}", f"Bus: {what.replace('_', ' ')}.", value=value)
        connected = GaugeMetricFamily(f"{self._prefix}_connected", "1 while the bus connection is up.")
        connected.add_metric([], float(self._connected()))
        yield connected

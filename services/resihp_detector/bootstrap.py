"""Composition root: the only place of this room that names concrete adapters."""

from __future__ import annotations

from resihp_bus import Bus, JetStreamBus
from resihp_chassis import Service
from resihp_detector.detector import SOURCE, Detector, serve
from resihp_detector.settings import DetectorSettings
from resihp_detector.watch import HealthWatch


async def run(service: Service[DetectorSettings], *, bus: Bus | None = None) -> None:
    """Run the detector until `service.stopping`. Raises `BusError` if the bus cannot be used at the start."""
    settings = service.settings
    messages = bus or JetStreamBus(settings.bus, SOURCE)
    await messages.connect()
    try:
        service.watch_bus(messages)
        detector = Detector(settings, messages, service.clock, incarnation=service.incarnation)
        watch = HealthWatch(settings, messages, service.clock, detector.say, detector.wrap, detector.picture.scale_of)
        _export(detector, watch, service)
        await serve(
            detector, watch, service.stopping, service.ready, service.health.watch("judge", settings.stuck_after_s)
        )
    finally:
        await messages.close()


def _export(detector: Detector, watch: HealthWatch, service: Service[DetectorSettings]) -> None:
    for what, text, read in (
        ("verdicts_count", "Failure events published.", lambda: detector.num_verdicts),
        ("beats_count", "Node beats heard.", lambda: detector.num_beats),
        ("pardons_count", "Rounds in which silence did not count: bus down or process paused.",
         lambda: detector.num_pardons),
        ("reports_count", "Reports of agents judged.", lambda: watch.num_reports),
        ("unread_reports_count", "Reports in the stream that are not judged yet.", lambda: watch.num_unread),
        ("unknown_reports_count", "Reports of epochs whose plan is not known.", lambda: watch.num_unknown),
        ("nodes_up_count", "Nodes whose agent is up.", lambda: sum(1 for _ in detector.picture.fleet.up())),
    ):  # fmt: skip
        service.metrics.gauge(what, text).set_function(read)

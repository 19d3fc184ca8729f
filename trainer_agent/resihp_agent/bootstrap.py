"""Composition root: the only place of this room that names concrete adapters."""

from __future__ import annotations

import time
from collections.abc import Callable

from resihp_agent.agent import Agent
from resihp_agent.settings import AgentSettings
from resihp_bus import Bus, JetStreamBus
from resihp_chassis import Service


def bootstrap(
    settings: AgentSettings,
    *,
    bus: Bus | None = None,
    clock: Callable[[], float] = time.monotonic,
    service: Service[AgentSettings] | None = None,
) -> Agent:
    """An agent that is ready to `run`. `clock` must be CLOCK_MONOTONIC of the host: workers stamp their pages with it.

    With a `service` it obeys its wish to stop and feeds its health endpoint and metrics.
    """
    bus = bus or JetStreamBus(settings.bus, f"agent-{settings.node}")
    agent = Agent(settings, bus, incarnation=settings.incarnation, clock=clock)
    if service is not None:
        agent.stopping = service.stopping
        agent.on_ready = service.ready
        service.watch_bus(bus)
        service.health.require("zygote", lambda: agent.has_zygote or "not running")
        _export(agent, service)
    return agent


def _export(agent: Agent, service: Service[AgentSettings]) -> None:
    metrics = service.metrics
    for what, text, read in (
        ("workers_count", "Worker processes running on this node.", lambda: agent.supervisor.num_workers),
        ("fenced_workers_count", "Workers killed because they were frozen or out of control.",
         lambda: agent.supervisor.num_fenced),
        ("attached_ranks_count", "Ranks of jobs that somebody else launched.", lambda: agent.attached.num_ranks),
        ("attached_dropped_frames_count", "Frames that attached ranks had to drop, because this agent was away.",
         lambda: agent.attached.num_dropped),
        ("malformed_frames_count", "Connections of attached ranks cut off because of a frame that breaks the contract.",
         lambda: agent.num_malformed_frames),
        ("outbox_messages_count", "Events and acknowledgements that the bus has not confirmed.",
         lambda: agent.outbox.depth),
        ("publish_retries_count", "Publishes repeated because the bus did not answer.",
         lambda: agent.outbox.num_retries),
        ("dropped_beats_count", "Beats dropped because the bus was down.", lambda: agent.announcer.num_dropped_beats),
        ("dropped_reports_count", "Iteration reports dropped because the bus was down.",
         lambda: agent.announcer.num_dropped_reports),
        ("refused_commands_count", "Commands refused by the fencing ledger or as invalid.",
         lambda: agent.num_refused_commands),
    ):  # fmt: skip
        metrics.gauge(what, text).set_function(read)

"""Composition root: the only place of this room that names concrete adapters."""

from __future__ import annotations

import time
from collections.abc import Callable

from resihp_agent.agent import Agent
from resihp_agent.settings import AgentSettings
from resihp_bus.port import Bus
from resihp_messages import new_id


def bootstrap(
    settings: AgentSettings, *, bus: Bus, clock: Callable[[], float] = time.monotonic, incarnation: str | None = None
) -> Agent:
    """An agent that is ready to `run`. `clock` must be CLOCK_MONOTONIC of the host outside unit tests, because
    workers stamp their progress pages with it."""
    return Agent(settings, bus, incarnation=incarnation or new_id(), clock=clock)

"""An agent that only watches, in the test's loop, on the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resihp_agent.bootstrap import bootstrap
from resihp_bus import MemoryBus
from resihp_messages import AnyEnvelope, Kind
from support.agents import agent_settings
from support.attach import Stage
from support.waiting import wait_for


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    bus = MemoryBus()
    settings = agent_settings(
        tmp_path, zygote_command=(), attach_stall_s=0.3, collateral_s=0.3, restart_wait_s=0.5, own_pause_s=5.0
    )
    agent = bootstrap(settings, bus=bus)
    said: list[AnyEnvelope] = []
    running = asyncio.create_task(agent.run())
    await wait_for(lambda: agent.is_ready, 10.0, what="the agent")

    async def keep(envelope: AnyEnvelope) -> None:
        said.append(envelope)

    for kind in (Kind.EVENT, Kind.ACK, Kind.REPORT):
        await bus.listen(kind, keep)
    made = Stage(agent, said)
    yield made
    agent.stop()
    await running
    made.close()

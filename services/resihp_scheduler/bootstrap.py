"""The composition root: the only place that names concrete adapters."""

from __future__ import annotations

import asyncio

from resihp_bus import Bus, JetStreamBus
from resihp_chassis import Service
from resihp_scheduler.leadership import Leadership
from resihp_scheduler.metrics import SchedulerMetrics
from resihp_scheduler.settings import SchedulerSettings
from resihp_scheduler.solver import ProcessSolver, Solver, ThreadSolver
from resihp_store import Store


async def serve(service: Service[SchedulerSettings], *, bus: Bus | None = None, store: Store | None = None) -> None:
    """Run the scheduler until `service.stopping`. `bus`, `store`: others than the settings name, for tests.

    Raises `StoreError` and `BusError` if they cannot be used at the start.
    """
    settings = service.settings
    database = store or Store(settings.database_url)
    messages = bus or JetStreamBus(settings.bus, "scheduler")
    solver: Solver = ProcessSolver() if settings.planner == "process" else ThreadSolver()
    try:
        await database.open()
        await messages.connect()
        service.watch_bus(messages)
        leadership = Leadership(
            database,
            messages,
            settings,
            service.clock,
            SchedulerMetrics(service.metrics),
            solver,
            incarnation=service.incarnation,
        )
        service.health.require("database", lambda: leadership.database_error or True)
        running = asyncio.create_task(leadership.run(service.ready))
        stopping = asyncio.create_task(service.stopping.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        leadership.stop()
        stopping.cancel()
        await running
    finally:
        await solver.close()
        await messages.close()
        await database.close()

"""The facts of one job, read from the database as rarely as possible: what cannot have changed is not read again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from resihp_gateway.context import Gateway
from resihp_gateway.governed import governed
from resihp_gateway.live import health, rates
from resihp_gateway.live.places import plan_map
from resihp_gateway.models import IncidentView, JobView, ReconfigurationView
from resihp_messages import JobSpec
from resihp_plan.plan import ParallelPlan
from resihp_store import DeviceRecord, IterationRecord, JobRecord, history, queries
from resihp_store.queries import Connection

MAX_POINTS = 1000
MAX_ROWS = 100
MAX_PLANS = 20
"""Newest plans that are kept, beside the first one: where devices were, and what the bound was."""
Point = tuple[int, int, float | None, float | None]
"""Iteration, epoch, tokens/s, loss."""


class Facts:
    """Everything that the page shows of one job. `refresh` reads; `all` is the result by name."""

    def __init__(self, gateway: Gateway, job: str) -> None:
        self._gateway = gateway
        self.job = job
        self.points: list[Point] = []
        self.found: dict[str, Any] = {}
        self._plans: list[ParallelPlan] = []
        self._devices: tuple[DeviceRecord, ...] = ()
        self._devices_stamp: Any = None
        self._healthy: float | None = None
        self._bounds: dict[int, float] = {}
        self._shares_cores = False

    async def refresh(self, *, quick: bool) -> list[Point]:
        """Bring `found` up to date; returns the new points.

        `quick` leaves out the lists of incidents and changes, which follow events.
        """
        async with self._gateway.store.read() as connection:
            record = await queries.job(connection, self.job)
            if record is None:
                return []
            if not self.found:
                self._shares_cores = _shares_cores(record.spec)
            await self._read_plans(connection, record)
            await self._read_devices(connection)
            new = await self._read_points(connection, record)
            if not quick or "incidents" not in self.found:
                await self._read_history(connection)
        self._conclude(record)
        return new

    async def _read_plans(self, connection: Connection, record: JobRecord) -> None:
        if not self._plans and record.epoch > MAX_PLANS:
            first = await history.first_plan(connection, self.job)
            self._plans = [ParallelPlan.from_dict(first.plan)] if first else []
        after = max(self._plans[-1].epoch + 1 if self._plans else 0, record.epoch - MAX_PLANS)
        issued = await queries.plans(connection, self.job, from_epoch=after)
        # In force is what all ranks installed; before the first one, what was issued.
        ready = [p for p in issued if p.epoch <= record.epoch] or ([] if self._plans else list(issued[:1]))
        if ready:
            known = self._plans + [ParallelPlan.from_dict(p.plan) for p in ready]
            self._plans = known if len(known) <= MAX_PLANS else [known[0], *known[-MAX_PLANS:]]
            self.found["map"] = {}

    async def _read_devices(self, connection: Connection) -> None:
        stamp = await history.devices_stamp(connection, self.job)
        if stamp != self._devices_stamp:
            self._devices, self._devices_stamp = await queries.devices(connection, self.job), stamp
            self.found["map"] = {}

    async def _read_points(self, connection: Connection, record: JobRecord) -> list[Point]:
        last = self.points[-1][0] if self.points else max(0, record.committed - MAX_POINTS)
        rows = await queries.iterations(connection, self.job, after=last, limit=MAX_POINTS)
        new = [_point(row) for row in rows]
        self.points = (self.points + new)[-MAX_POINTS:]
        if self._healthy is None and self.points and self._plans:
            sample = await queries.iterations(
                connection, self.job, epoch=self._plans[0].epoch, limit=rates.SKIPPED + rates.SAMPLE
            )
            settled = len(sample) >= rates.SKIPPED + rates.SAMPLE or record.epoch > self._plans[0].epoch
            self._set_healthy(rates.healthy_rate(sample), settled=settled or record.state.ended)
        return new

    def _set_healthy(self, rate: float | None, *, settled: bool) -> None:
        self.found["healthy"] = rate
        if settled:
            self._healthy = rate

    async def _read_history(self, connection: Connection) -> None:
        page = history.Page(limit=MAX_ROWS, newest_first=True)
        incidents = await history.incidents(connection, page, job=self.job)
        changes = await history.reconfigurations(connection, page, job=self.job)
        self.found["incidents"] = [IncidentView.model_validate(i).model_dump(mode="json") for i in incidents]
        self.found["reconfigurations"] = [
            {
                **view.model_dump(mode="json", exclude={"alternatives"}),
                "num_alternatives": len(record.alternatives),
            }
            for record in changes
            for view in (ReconfigurationView.model_validate(record),)
        ]
        self.found["control"] = (await governed(connection, self.job, datetime.now(UTC))).model_dump(mode="json")
        self._bounds = rates.bounds(self._plans, changes, self._healthy or self.found.get("healthy"))

    def _conclude(self, record: JobRecord) -> None:
        spec = record.spec
        self.found["job"] = {
            **JobView.model_validate(record).model_dump(mode="json", exclude={"spec"}),
            "parallel": spec.get("parallel"),
            "dtype": spec.get("dtype"),
            "virtual_clock": bool((spec.get("clock") or {}).get("virtual")),
        }
        if not self._plans:
            return
        plan = self._plans[-1]
        if not self.found.get("map"):
            self.found["map"] = {
                **plan_map(self._plans, [d.rank for d in self._devices]),
                "nodes": [d.node for d in sorted(self._devices, key=lambda d: d.rank)],
            }
        scores = self._gateway.health.newest(self.job)
        beats = self._gateway.beats.workers(self.job)
        codes = health.health_bytes(self._devices, scores, beats, plan.standby, record.state)
        self.found["health"] = health.encoded(codes)
        healthy = self._healthy or self.found.get("healthy")
        alive = {d.rank for d in self._devices if d.state.alive}
        num_devices = len(self._devices) or len(plan.world)
        self.found["rates"] = {
            "now": rates.recent_rate(self.points),
            "healthy": healthy,
            "bound": rates.bound_now(healthy, num_devices, plan, scores, alive, shares_cores=self._shares_cores),
            "bounds": self._bounds,
        }


def _shares_cores(spec: Mapping[str, Any]) -> bool:
    """Of a job of an older version, whose file this one would refuse: not known, so devices count one by one."""
    try:
        return JobSpec.model_validate(spec).shares_cores
    except ValueError:
        return False


def _point(row: IterationRecord) -> Point:
    loss = None if row.loss is None else round(row.loss, 6)
    return row.iteration, row.epoch, round(row.tokens_per_s, 2) or None, loss

"""An operator takes a device out of a running job, takes that back, and does it again: real workers, exact training."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from benchmarks.demo import JOB, RunningDemo, demo
from resihp_cli.client import GatewayClient
from resihp_gateway.models import ReconfigurationView
from support.waiting import wait_for

ITERATIONS = 70
PATIENCE_S = 20.0


class Steering:
    """What an operator asks of a running demo, and what comes of it."""

    def __init__(self, running: RunningDemo, client: GatewayClient) -> None:
        self._running, self._client = running, client

    async def act(self, action: str, **body: Any) -> ReconfigurationView | None:
        """Ask; if that changes the plan, the change once it is applied."""
        accepted = await self._client.act(JOB, action, {"reason": f"try {action}", **body})
        if accepted.reconfiguration_id is None:
            return None
        return await self.applied(lambda change: change.id == accepted.reconfiguration_id)

    async def applied(self, wanted: Any) -> ReconfigurationView:
        """The newest change of that kind, applied."""
        found: list[ReconfigurationView] = []

        async def is_there() -> bool:
            self._running.check_alive()
            changes = await self._client.reconfigurations(JOB)
            found[:] = [c for c in changes if c.status == "applied" and wanted(c)]
            return bool(found)

        await wait_for(is_there, PATIENCE_S, what="the change is applied")
        return found[-1]

    async def working(self) -> set[int]:
        """Ranks of the newest plan's stages."""
        plan = (await self._client.plans(JOB))[-1].plan
        return {rank for replica in plan["replicas"] for stage in replica["stages"] for rank in stage["ranks"]}


@pytest.mark.soak
@pytest.mark.timeout(500)
async def test_devices_are_evicted_readmitted_and_changes_undone_in_a_real_job() -> None:
    everybody = set(range(8))
    arguments = ("--no-fault", "--dtype", "float64", "--verify", "--iterations", str(ITERATIONS))
    async with demo(arguments) as running:
        url = (await running.info()).gateway_url
        async with GatewayClient(url) as client, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            operator = Steering(running, client)
            await running.reach(client, 5)

            change = await operator.act("evict", ranks=[5])
            assert change is not None
            assert change.mode == "planned"
            assert await operator.working() == everybody - {5}
            assert (await client.control(JOB)).evicted == (5,)

            assert await operator.act("undo") is not None
            assert await operator.working() == everybody
            assert (await client.control(JOB)).evicted == ()

            assert await operator.act("evict", ranks=[2]) is not None
            assert await operator.working() == everybody - {2}
            assert await operator.act("readmit", ranks=[2]) is None  # the scheduler weighs what to do with it
            back = await operator.applied(lambda c: "readmitted" in c.reason)
            assert back.mode == "planned"
            assert await operator.working() == everybody

            asked = (await http.get(f"/api/v1/audit?job={JOB}&limit=50")).json()
            assert [(a["action"], a["reason"]) for a in reversed(asked)] == [
                ("SubmitJob", ""),
                ("RequestEvict", "try evict"),
                ("RequestUndo", "try undo"),
                ("RequestEvict", "try evict"),
                ("RequestReadmit", "try readmit"),
            ]
        document = await running.result()
    assert document["holds"], document["failures"]
    assert document["survivors"] == sorted(everybody)  # an evicted device keeps its process
    assert len(document["planned_changes"]) == 4
    assert document["parity"]["max_abs_diff"] <= 1e-9

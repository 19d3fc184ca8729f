"""The bus freezes for three seconds at each step of a planned change: late, but complete, and nobody is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.demo import RunningDemo, demo
from benchmarks.plan_changes import LAYOUTS

FROZEN_S = 3.0
"""Less than the shortest silence after which a node is lost (timeouts.node_s)."""
AT = {
    "prepare": "SELECT count(*) >= 1 FROM reconfigurations WHERE mode = 'planned'",
    "switch": "SELECT count(*) >= 3 FROM acks WHERE name = 'PlanPrepared'",
    "move": "SELECT count(*) >= 4 FROM acks WHERE name = 'PlanPrepared'",
    "first vote": "SELECT count(*) >= 3 FROM acks WHERE name = 'PlanApplied'",
}
"""What the database says when the change has come there, with two agents: the command is on its way; one node holds the
plan; both do, so the next vote switches; the first acknowledges the new epoch. (Of the first plan both said all that.)
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", AT)
async def test_a_planned_change_outlives_it(point: str, tmp_path: Path) -> None:
    plan = tmp_path / "uneven.json"
    plan.write_text(json.dumps(LAYOUTS["uneven"]))
    arguments = ("--iterations", "26", "--agents", "2", "--dtype", "float64", "--verify", "--switch", f"{plan}@6")
    async with demo(arguments) as running:
        info = await running.info()
        await reached(running, Path(info.database_url.partition("///")[2]), AT[point])
        async with frozen(info.pids["nats"]):
            await asyncio.sleep(FROZEN_S)
        document = await running.result()
    assert document["committed"] == 26
    assert document["samples"]["lost"] == document["samples"]["repeated"] == 0
    assert document["parity"]["max_abs_diff"] <= 1e-9
    (change,) = document["planned_changes"]
    assert change["proof"]
    assert all(change["proof"].values())
    assert not document["recoveries"]


async def reached(running: RunningDemo, database: Path, condition: str) -> None:
    """Wait until the query yields a true value."""
    while True:
        running.check_alive()
        try:
            with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=1.0) as connection:
                if connection.execute(condition).fetchone()[0]:
                    return
        except sqlite3.OperationalError:  # not created yet, or being migrated
            pass
        await asyncio.sleep(0.01)


@asynccontextmanager
async def frozen(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)

"""examples/watch_failures.py, run as its reader would run it, beside a job that loses a worker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchmarks.demo import JOB, demo
from resihp_cli.client import GatewayClient

ROOT = Path(__file__).parents[3]


async def test_the_example_prints_the_failure_and_the_change_of_plan() -> None:
    async with demo(["--iterations", "9", "--kill", "3@5"]) as running:
        url = (await running.info()).gateway_url
        example = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "examples" / "watch_failures.py"), url),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with GatewayClient(url) as client:
                await running.reach(client, 1)
            assert example.stdout is not None
            lines = [(await asyncio.wait_for(example.stdout.readline(), 120)).decode() for _ in range(3)]
            await running.result()
        finally:
            example.terminate()
            await example.wait()
    assert all(f"  {JOB}  " in line for line in lines), lines
    lost, planned, applied = lines
    assert "worker_lost: rank 3 on n0;" in lost
    assert "plan 2: R0" in planned
    assert "running plan 2 (" in applied
    assert "proof holds" in applied

"""Runs docker-compose.yml for real and looks at it from outside: `make compose-check`.

Builds both images, starts the project under a name and a port of its own with fresh secrets, trains one job over both
agents, kills a worker process in its container, and checks what a user can see: live events, REST history, the stored
record. Then it restarts every service, one by one, under a second job, and the whole project over its volumes. Always
tears down. Exit status 0 only if every check holds.

Needs a Docker engine with `docker compose` or `docker-compose`. Options: --keep leaves it running, --no-build.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time

from resihp_cli.client import GatewayClient
from resihp_cli.errors import CliError
from resihp_gateway.models import DeviceView, EventView
from resihp_messages import JobSpec
from scripts.compose_project import CheckFailed, Compose, eventually, expect
from scripts.compose_restarts import cannot_command, down_and_up, restarts, submitted

JOB = "compose-check"
ITERATIONS = 40
KILL_AFTER = 10
"""Iterations to be committed before the kill: warm-up is over."""
VICTIM = 5
FAILURES = {"WorkerLost", "WorkerFrozen", "NodeLost", "LinkLost"}


class Witness:
    """Reads the event stream like any user and remembers when it saw what."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, EventView]] = []
        """Wall clock of this machine, which the containers share, and event."""

    async def follow(self, client: GatewayClient) -> None:
        async for event in client.events(after=0):
            self.seen.append((time.time(), event))

    def first(self, *names: str) -> tuple[float, EventView] | None:
        return next(((at, e) for at, e in self.seen if e.name in names), None)


async def scenario(compose: Compose) -> None:
    """The user's story, check by check."""
    async with GatewayClient(f"http://127.0.0.1:{compose.port}") as client:
        await eventually(client.ready, "gateway ready", timeout_s=90)
        expect(True, "gateway is ready on the published port", compose.port)
        torch = "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
        expect(compose.python("detector", torch) == "False", "the services' image holds no PyTorch")
        witness = Witness()
        follower = asyncio.create_task(witness.follow(client))
        try:
            await _one_worker(compose, client, witness)
        finally:
            follower.cancel()
        cannot_command(compose, "agent-a")
        await restarts(compose, client)
        await down_and_up(compose, client, JOB)


async def _one_worker(compose: Compose, client: GatewayClient, witness: Witness) -> None:
    spec = JobSpec(name=JOB, iterations=ITERATIONS, dtype="float64")
    await eventually(lambda: submitted(client, spec), "job accepted", timeout_s=60)

    async def committed() -> int:
        found = await client.iterations(JOB)
        return found[-1].iteration if found else 0

    async def warm() -> bool:
        return await committed() >= KILL_AFTER

    await eventually(warm, f"{KILL_AFTER} iterations committed", timeout_s=180)
    before = {d.rank: d for d in await client.devices(JOB)}
    expect(sorted({d.node for d in before.values()}) == ["agent-a", "agent-b"], "the job runs on both agents")
    victim = before[VICTIM]
    # The time is taken inside: starting a command in a container takes longer than anything measured here.
    killed_at = float(compose.run("exec", "-T", victim.node, "sh", "-c", f"date +%s.%N; kill -9 {_pid(victim)}"))

    async def lost() -> tuple[float, EventView] | None:
        return witness.first(*FAILURES)

    at, event = await eventually(lost, "failure event", timeout_s=30, every_s=0.02)
    expect(event.name == "WorkerLost", "the failure event arrives outside", f"{at - killed_at:.2f} s after")

    async def applied() -> EventView | None:
        found = witness.first("ReconfigurationApplied")
        return found[1] if found else None

    change = await eventually(applied, "ReconfigurationApplied", timeout_s=60, every_s=0.05)
    proof = change.body["proof"]
    expect(isinstance(proof, dict) and all(proof.values()), "its proof holds", proof)
    after = {d.rank: d for d in await client.devices(JOB)}
    survivors = [r for r in before if r != VICTIM]
    unchanged = all(_pid(before[r]) == _pid(after[r]) for r in survivors)
    expect(unchanged, "the other seven workers kept their process ids", [_pid(after[r]) for r in survivors])

    async def over() -> bool:
        return (await client.job(JOB)).state in {"finished", "failed", "stopped"}

    await eventually(over, "job over", timeout_s=240)
    job = await client.job(JOB)
    expect(job.state == "finished", "the job finished", job.state)
    expect(job.committed == ITERATIONS, "every iteration was committed", job.committed)
    expect(job.samples_expected == job.samples_once, "every sample was used once", job.samples_once)
    await _history(compose, client)


async def _history(compose: Compose, client: GatewayClient) -> None:
    incidents = await client.incidents(JOB)
    lost = [i for i in incidents if i.kind == "worker_lost"]
    expect([list(i.ranks) for i in lost] == [[VICTIM]], "one loss is on record", lost[0].advice if lost else "none")
    # Ten containers share the cores of this machine: a worker that gets less of them is slow, and may be called so.
    slow = [(list(i.ranks), i.verdict.get("p")) for i in incidents if i.kind == "device_slow"]
    expect(len(lost) + len(slow) == len(incidents), "nothing but slow devices beside it", slow)
    changes = [c for c in await client.reconfigurations(JOB) if c.mode == "recovery"]
    expect([c.status for c in changes] == ["applied"], "one recovery is on record", changes[0].difference)
    phases = {name: round(s * 1e3, 1) for name, s in changes[0].phases_s.items() if s is not None}
    expect({"detect", "plan", "rebuild", "move", "redo", "total"} <= set(phases), "its phases, in ms", phases)
    stored = json.loads(
        compose.run("exec", "-T", "gateway", "sh", "-c", 'resihp history --json --db "$RESIHP_DATABASE_URL"')
    )
    expect(bool(stored), "`resihp history` reads the same from PostgreSQL")


def _pid(device: DeviceView) -> int | None:
    return device.live_pid or device.pid


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the project running")
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    options = parser.parse_args()
    try:
        compose = Compose()
    except CheckFailed as error:
        print(f"compose-check: {error}", file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        if not options.no_build:
            print("building", flush=True)
            compose.run("build", timeout_s=1800, quiet=False)
        print("starting", flush=True)
        compose.run("up", "--detach", "--no-build", timeout_s=300)
        asyncio.run(scenario(compose))
    except (CheckFailed, CliError, subprocess.TimeoutExpired) as error:
        print(compose.run("ps", check=False))
        print(compose.run("logs", "--no-color", "--tail", "40", check=False)[-20_000:])
        print(f"compose-check: FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            compose.run("down", "--volumes", "--remove-orphans", "--timeout", "10", timeout_s=180, check=False)
    print(f"compose-check: all checks hold ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The second half of `make compose-check`: keys hold, every service may be restarted, nothing stored is lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from resihp_cli.client import GatewayClient
from resihp_messages import JobSpec
from scripts.compose_project import Compose, eventually, expect

JOB = "restarts"
SERVICES = ("detector", "scheduler", "gateway", "nats", "postgres")
AGENT, OTHER = "agent-b", "agent-a"
MORE = 3
"""Iterations that must be committed after each restart."""
COMMAND = """
import asyncio, sys
from resihp_bus import BusRefused, JetStreamBus, JetStreamSettings
from resihp_messages import Envelope
from resihp_messages.command import StopJob

async def main():
    bus = JetStreamBus(JetStreamSettings(), "agent-" + sys.argv[1])
    await bus.connect()
    body = StopJob(node=sys.argv[1], token=1, reason="forged")
    forged = Envelope.of(body, job="x", source="scheduler", incarnation="i")
    try:
        await bus.publish(forged, detail=sys.argv[1])
        print("published")
    except BusRefused:
        print("refused")
    finally:
        await bus.close()

asyncio.run(main())
"""


async def submitted(client: GatewayClient, spec: JobSpec) -> bool:
    await client.submit(spec)
    return True


def cannot_command(compose: Compose, agent: str) -> None:
    """With what an agent's container holds nobody can command, and no other identity's key is in it."""
    said = compose.run("exec", "-T", agent, "python", "-c", COMMAND, agent).strip().splitlines()[-1]
    expect(said == "refused", "an agent's key cannot send commands", said)
    seen = compose.run("exec", "-T", agent, "sh", "-c", "ls /keys").split()
    expect(seen == [f"agent-{agent}"], "its container holds no other key", seen)


async def restarts(compose: Compose, client: GatewayClient) -> None:
    """A job trains while every service is restarted in turn, and an agent last."""
    await eventually(lambda: submitted(client, JobSpec(name=JOB, iterations=100_000)), "job accepted", timeout_s=60)

    async def committed() -> int:
        found = await client.iterations(JOB, after=max(0, (await client.job(JOB)).committed - 1))
        return found[-1].iteration if found else 0

    async def reaches(target: int) -> None:
        async def there() -> bool:
            return await committed() >= target

        await eventually(there, f"iteration {target} committed", timeout_s=180)

    await reaches(MORE)
    before = {d.rank: (d.node, d.live_pid or d.pid) for d in await client.devices(JOB)}
    for service in SERVICES:
        at = await committed()
        began = time.monotonic()
        compose.run("restart", "--timeout", "10", service, timeout_s=60)
        await eventually(client.ready, f"ready after the restart of {service}", timeout_s=90)
        took = time.monotonic() - began
        now = await eventually(committed, f"read after the restart of {service}", timeout_s=90)
        await reaches(now + MORE)
        expect(True, f"training goes on over a restart of {service}", f"{at} -> {now} in {took:.1f} s, and beyond")
    after = {d.rank: (d.node, d.live_pid or d.pid) for d in await client.devices(JOB)}
    expect(after == before, "no worker was touched", sorted(pid for _, pid in after.values() if pid))
    await _agent(compose, client, before, reaches)
    await client.stop(JOB, "enough")

    async def over() -> bool:
        return (await client.job(JOB)).state == "stopped"

    await eventually(over, "job stopped", timeout_s=60)
    rows = await client.all_iterations(JOB)
    once = bool(rows) and all(row.samples_expected == row.samples_once for row in rows)
    expect(once, "every sample of every committed iteration was used once", f"{len(rows)} iterations")


async def _agent(
    compose: Compose,
    client: GatewayClient,
    before: dict[int, tuple[str, int | None]],
    reaches: Callable[[int], Awaitable[None]],
) -> None:
    """Its devices are lost and come back; the other node's workers stay the same processes."""
    compose.run("restart", "--timeout", "10", AGENT, timeout_s=60)

    async def back() -> bool:
        devices = await client.devices(JOB)
        return all(d.state in {"healthy", "standby"} for d in devices) and any(d.start > 0 for d in devices)

    await eventually(back, f"the devices of {AGENT} work again", timeout_s=180)
    await reaches((await client.job(JOB)).committed + MORE)
    devices = await client.devices(JOB)
    kept = {d.rank: (d.node, d.live_pid or d.pid) for d in devices if d.node == OTHER}
    expect(
        all(before[rank] == seen for rank, seen in kept.items()),
        f"{AGENT} was restarted, its devices came back, the workers of {OTHER} went on",
        f"epoch {(await client.job(JOB)).epoch}",
    )


async def down_and_up(compose: Compose, client: GatewayClient, job: str) -> None:
    """The project ends and starts again over its volumes: keys, events and history are the same; a filled database
    is brought to the newest schema without a change."""
    before = [c.id for c in await client.reconfigurations(job)]
    public = compose.run("exec", "-T", "nats", "sh", "-c", "cat /etc/resihp-keys/auth.conf")
    compose.run("down", "--timeout", "10", timeout_s=180)
    compose.run("up", "--detach", "--no-build", timeout_s=300)
    await eventually(client.ready, "gateway ready again", timeout_s=120)
    after = [c.id for c in await client.reconfigurations(job)]
    expect(before == after and bool(after), "the history survives down and up", after)
    again = compose.run("exec", "-T", "nats", "sh", "-c", "cat /etc/resihp-keys/auth.conf")
    expect(again == public, "and so do the keys")

    async def old_event() -> bool:
        async for event in client.events(after=0):
            return event.name != ""
        return False

    expect(await old_event(), "and the event stream")

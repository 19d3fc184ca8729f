"""Keys and permissions on a real nats-server: everybody can do their part, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from resihp_bus import Ack, BusRefused, JetStreamBus, KeyFolder, LocalNats, Outcome
from resihp_messages import AnyEnvelope, Kind
from support.envelopes import ack, beat, event, reply, report, stop_request
from support.nats import quick_settings, require_nats
from support.samples import BODIES
from support.waiting import wait_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "subscribe.py"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    folder = KeyFolder(tmp_path_factory.mktemp("keys"))
    folder.init(["n0", "n1"])
    return folder


@pytest.fixture(scope="module")
def server(keys: KeyFolder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNats]:
    require_nats()
    with LocalNats(tmp_path_factory.mktemp("nats"), include=keys.config) as running:
        yield running


def bus_of(name: str, keys: KeyFolder, server: LocalNats, **changes: object) -> JetStreamBus:
    settings = quick_settings(server.url, keys=keys.path, provision=name == "scheduler", **changes)
    return JetStreamBus(settings, name)


@asynccontextmanager
async def connected(keys: KeyFolder, server: LocalNats, *names: str) -> AsyncIterator[list[JetStreamBus]]:
    """Buses of these identities; nobody was refused anything when the context ends."""
    buses = [bus_of(name, keys, server) for name in names]
    await asyncio.gather(*(bus.connect() for bus in buses))
    try:
        yield buses
        assert {bus.name: bus.stats.errors for bus in buses} == dict.fromkeys(names, 0)
    finally:
        for bus in reversed(buses):
            await bus.close()


@asynccontextmanager
async def raw(name: str, keys: KeyFolder, server: LocalNats) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client that tries anything with somebody's key, and what the server objected to."""
    objections: list[str] = []

    async def note(error: Exception) -> None:
        objections.append(str(error))

    client = await nats.connect(
        server.url, nkeys_seed=str(keys.path / name / "seed.nk"), inbox_prefix=f"_INBOX_{name}", error_cb=note
    )
    try:
        yield client, objections
    finally:
        await client.close()


class Heard:
    """A handler that acknowledges and remembers."""

    def __init__(self) -> None:
        self.schemas: list[str] = []

    async def __call__(self, envelope: AnyEnvelope) -> Outcome:
        self.schemas.append(envelope.schema_)
        return Ack()

    async def listen(self, envelope: AnyEnvelope) -> None:
        self.schemas.append(envelope.schema_)


async def first(bus: JetStreamBus, kind: Kind) -> str:
    async with aclosing(bus.replay(kind, after_sequence=0)) as messages:
        async for stored in messages:
            return stored.envelope.schema_
    raise AssertionError("no message")


def of(schema: str) -> AnyEnvelope:
    body = next(b for b in BODIES if b.schema_name == schema)
    return AnyEnvelope.of(body, job="demo", source="test", incarnation="i0")


async def test_everybody_can_do_their_part(keys: KeyFolder, server: LocalNats) -> None:
    async with connected(keys, server, "scheduler", "detector", "gateway", "agent-n0") as buses:
        scheduler, detector, gateway, agent = buses
        commands, events, beats, peers, hook = Heard(), Heard(), Heard(), Heard(), Heard()
        await agent.consume("agent-n0", Kind.COMMAND, commands, detail="n0")
        await agent.listen(Kind.EVENT, peers.listen)
        await detector.consume("detector-event", Kind.EVENT, events)
        await detector.listen(Kind.BEAT, beats.listen)
        await gateway.listen(Kind.BEAT, beats.listen)
        await gateway.consume("webhook-chat", Kind.EVENT, hook, batch=1)
        await scheduler.consume("scheduler-ack", Kind.ACK, events)
        await scheduler.listen(Kind.SCORE, events.listen)

        async def stop(envelope: AnyEnvelope) -> AnyEnvelope:
            return reply(accepted=True, to=envelope)

        await scheduler.serve("RequestStop", stop)
        assert (await gateway.request(stop_request(), detail="RequestStop")).schema_ == "Reply.v1"
        await agent.publish(beat(1), detail="n0")
        await agent.publish(event(), detail="NodeLeft")
        await agent.publish(ack("older"), detail="n0")
        assert agent.publish_soon(report(1), detail="n0")
        await detector.publish(of("WorkerLost.v1"), detail="WorkerLost")
        assert detector.publish_soon(of("HealthScores.v1"), detail="HealthScores")
        await scheduler.publish(of("StopJob.v1"), detail="n0")
        await gateway.publish(of("ActionRequested.v1"), detail="ActionRequested")
        await detector.keep("detector", b"learnt")
        assert await detector.kept("detector") == b"learnt"
        assert await first(detector, Kind.COMMAND) == "StopJob.v1"
        assert await first(detector, Kind.REPORT) == await first(scheduler, Kind.REPORT) == "IterationReport.v1"
        assert await first(gateway, Kind.SCORE) == "HealthScores.v1"
        wanted = {"NodeLeft.v1", "WorkerLost.v1", "ActionRequested.v1"}
        await wait_for(lambda: wanted <= set(hook.schemas) and wanted <= set(peers.schemas), 10.0)
        await wait_for(lambda: {*wanted, "PlanRejected.v1", "HealthScores.v1"} <= set(events.schemas), 10.0)
        await wait_for(lambda: commands.schemas == ["StopJob.v1"] and len(beats.schemas) == 2, 10.0)


async def test_a_program_with_the_operators_key_follows_events(keys: KeyFolder, server: LocalNats) -> None:
    async with connected(keys, server, "scheduler", "agent-n1") as (_, agent):
        await agent.publish(event("n1"), detail="NodeLeft")
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), server.url, "0", str(keys.path / "operator" / "seed.nk")),
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdout is not None
        line = await asyncio.wait_for(program.stdout.readline(), 120)
        program.kill()
        await program.wait()
    assert b"demo" in line


FORBIDDEN_TO_AGENTS = (
    "resihp.v1.demo.command.n0",
    "resihp.v1.demo.command.n1",
    "resihp.v1._fleet.beat.n1",
    "resihp.v1.demo.report.n1",
    "resihp.v1.demo.ack.n1",
    "resihp.v1.demo.event.WorkerLost",
    "resihp.v1.demo.event.ReconfigurationApplied",
    "resihp.v1.demo.score.HealthScores",
    "resihp.v1.demo.request.RequestStop",
    "_INBOX_gateway.forged",
    "$JS.API.STREAM.DELETE.RESIHP_EVENT",
    "$JS.API.STREAM.PURGE.RESIHP_COMMAND",
    "$JS.API.STREAM.UPDATE.RESIHP_COMMAND",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.MSG.GET.RESIHP_COMMAND",
    "$JS.API.CONSUMER.CREATE.RESIHP_COMMAND",
    "$JS.API.CONSUMER.CREATE.RESIHP_COMMAND.agent-n0",
    "$JS.API.CONSUMER.CREATE.RESIHP_COMMAND.agent-n0.resihp.v1.*.command.n1",
    "$JS.API.CONSUMER.CREATE.RESIHP_COMMAND.agent-n0.resihp.v1.*.command.*",
    "$JS.API.CONSUMER.MSG.NEXT.RESIHP_COMMAND.agent-n1",
    "$JS.API.CONSUMER.DELETE.RESIHP_COMMAND.agent-n1",
    "$JS.ACK.RESIHP_COMMAND.agent-n1.1.1.1.1.0",
    "$JS.ACK.RESIHP_EVENT.detector-event.1.1.1.1.0",
    "$O.RESIHP_KEPT.M.ZGV0ZWN0b3I=",
)
FORBIDDEN_TO_OPERATORS = (
    "resihp.v1.demo.command.n0",
    "resihp.v1.demo.event.NodeLeft",
    "resihp.v1.demo.request.SubmitJob",
    "$JS.API.STREAM.DELETE.RESIHP_EVENT",
    "$JS.API.CONSUMER.CREATE.RESIHP_EVENT.detector-event.resihp.v1.*.event.None",
    "$JS.API.CONSUMER.CREATE.RESIHP_EVENT",  # it would take the name of another reader from the request's body
    "$JS.API.CONSUMER.CREATE.RESIHP_EVENT.operator",
    "$JS.API.CONSUMER.MSG.NEXT.RESIHP_EVENT.detector-event",
    "$JS.API.CONSUMER.DELETE.RESIHP_EVENT.detector-event",
)
DEAF_TO = {
    "agent-n0": ("_INBOX_gateway.>", "_INBOX_agent-n1.>", "_INBOX.>", "resihp.v1.*.command.*", "resihp.v1.>", ">"),
    "gateway": ("_INBOX_scheduler.>", "resihp.v1.*.command.*", "resihp.v1.*.request.*"),
    "operator": ("_INBOX_gateway.>", "resihp.v1.*.command.*", "resihp.v1.*.request.SubmitJob"),
}
FORBIDDEN = {
    "agent-n0": FORBIDDEN_TO_AGENTS,
    "operator": FORBIDDEN_TO_OPERATORS,
    "gateway": ("resihp.v1.demo.command.n0", "resihp.v1.demo.event.WorkerLost", "_INBOX_scheduler.x"),
    "detector": ("resihp.v1.demo.command.n0", "resihp.v1.demo.request.RequestStop", "resihp.v1.demo.event.NodeLeft"),
    "scheduler": ("resihp.v1.demo.event.WorkerLost", "resihp.v1.n.beat.n0", "$JS.API.STREAM.DELETE.RESIHP_EVENT"),
}


@pytest.mark.parametrize("name", FORBIDDEN)
async def test_a_key_cannot_say_what_is_not_its_own(name: str, keys: KeyFolder, server: LocalNats) -> None:
    async with raw(name, keys, server) as (client, objections):
        for subject in FORBIDDEN[name]:
            await client.publish(subject, b"forged")
        await client.flush()
        await wait_for(lambda: len(objections) >= len(FORBIDDEN[name]), 10.0)
    for subject, objection in zip(FORBIDDEN[name], objections, strict=True):
        assert f'violation for publish to "{subject.lower()}"' in objection.lower()


@pytest.mark.parametrize("name", DEAF_TO)
async def test_a_key_cannot_hear_what_is_not_its_own(name: str, keys: KeyFolder, server: LocalNats) -> None:
    async with raw(name, keys, server) as (client, objections):
        for subject in DEAF_TO[name]:
            await client.subscribe(subject)
        await client.flush()
        await wait_for(lambda: len(objections) >= len(DEAF_TO[name]), 10.0)
    assert all("violation for subscription" in objection.lower() for objection in objections)


async def test_an_agents_reader_cannot_be_bent_to_anothers_commands(keys: KeyFolder, server: LocalNats) -> None:
    """The allowed subject names the filter; what the request itself says must not differ."""
    allowed = "$JS.API.CONSUMER.CREATE.RESIHP_COMMAND.agent-n0.resihp.v1.*.command.n0"
    bent = [
        {"filter_subject": "resihp.v1.*.command.n1"},
        {"filter_subjects": ["resihp.v1.*.command.n0", "resihp.v1.*.command.n1"]},
        {"filter_subject": ""},
        {"name": "agent-n1", "durable_name": "agent-n1", "filter_subject": "resihp.v1.*.command.n0"},
    ]
    async with connected(keys, server, "scheduler"), raw("agent-n0", keys, server) as (client, objections):
        for changes in bent:
            config = {"name": "agent-n0", "durable_name": "agent-n0", "ack_policy": "explicit", **changes}
            answer = await client.request(
                allowed, json.dumps({"stream_name": "RESIHP_COMMAND", "config": config}).encode()
            )
            assert "error" in json.loads(answer.data), changes
        assert objections == []


async def test_without_a_key_or_with_a_strangers_nobody_comes_in(
    keys: KeyFolder, server: LocalNats, tmp_path: Path
) -> None:
    strangers = KeyFolder(tmp_path / "strangers")
    strangers.init(["n0"])
    for settings in (
        quick_settings(server.url, connect_timeout_s=1.0),
        quick_settings(server.url, connect_timeout_s=1.0, keys=strangers.path),
    ):
        with pytest.raises(BusRefused, match=r"(?i)authorization"):
            await JetStreamBus(settings, "agent-n0").connect()
    with pytest.raises(BusRefused, match=r"bus identity agent-n9: .*`resihp keys init` makes it"):
        await bus_of("agent-n9", keys, server).connect()


async def test_over_tls(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    keys.init(["n0"], tls_hosts=["localhost", "127.0.0.1"])
    with LocalNats(tmp_path / "nats", include=keys.config) as server:
        async with connected(keys, server, "scheduler", "agent-n0"):
            pass
        (keys.path / "agent-n0" / "ca.pem").write_text("nonsense")
        with pytest.raises(BusRefused, match=r"ca\.pem: not a certificate"):
            await bus_of("agent-n0", keys, server).connect()


async def test_who_may_not_make_the_streams_waits_for_who_may(keys: KeyFolder, tmp_path: Path) -> None:
    with LocalNats(tmp_path / "nats", include=keys.config) as server:
        with pytest.raises(BusRefused, match="stream not found"):
            await bus_of("detector", keys, server, connect_timeout_s=2.0).connect()
        early = bus_of("detector", keys, server, connect_timeout_s=30.0)
        connecting = asyncio.create_task(early.connect())
        async with connected(keys, server, "scheduler"):
            await connecting
        await early.close()


async def test_a_reload_lets_a_new_key_in_and_an_old_one_out(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    keys.init(["n0", "n1"])
    with LocalNats(tmp_path / "nats", include=keys.config) as server:
        async with connected(keys, server, "scheduler"), raw("agent-n1", keys, server) as (gone, _):
            kept = keys.path / "agent-n1" / "kept.nk"
            kept.write_bytes((keys.path / "agent-n1" / "seed.nk").read_bytes())
            keys.remove("agent-n1")
            keys.init(["n2"])
            os.kill(server.pid, signal.SIGHUP)  # what `nats-server --signal reload` sends
            await wait_for(lambda: not gone.is_connected, 10.0)
            async with connected(keys, server, "agent-n2"):
                pass
            (keys.path / "agent-n1" / "seed.nk").write_bytes(kept.read_bytes())
            with pytest.raises(BusRefused, match=r"(?i)authorization"):
                await bus_of("agent-n1", keys, server, connect_timeout_s=1.0).connect()

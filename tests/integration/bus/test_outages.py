"""JetStreamBus against a nats-server that crashes, freezes, forgets or refuses."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from functools import partial
from pathlib import Path

import nats
import pytest

from resihp_bus import Ack, BusRefused, BusUnavailable, JetStreamBus, LocalNats, Outcome
from resihp_messages import STREAMS, AnyEnvelope, Kind, stream_of
from support.envelopes import event, node_of, report
from support.nats import quick_settings
from support.waiting import wait_for


def _as_long_as(items: list[str], length: int) -> bool:
    return len(items) >= length


async def test_five_crashes_lose_and_double_nothing(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    """Publisher and consumer run on while the server is killed five times. Every acknowledged message arrives, in
    order, and this consumer handles none twice."""
    seen: list[str] = []
    sent: list[str] = []
    stop = asyncio.Event()

    async def handler(envelope: AnyEnvelope) -> Outcome:
        seen.append(node_of(envelope))
        return Ack()

    async def publish() -> None:
        while not stop.is_set():
            envelope = event(f"n{len(sent)}")
            while True:
                try:
                    await nats_bus.publish(envelope, detail="NodeLeft", timeout_s=1.0)
                    break
                except BusUnavailable:
                    continue
            sent.append(node_of(envelope))

    await nats_bus.consume("d", Kind.EVENT, handler)
    publisher = asyncio.ensure_future(publish())
    for round_ in range(5):
        target = len(sent) + 40
        await wait_for(partial(_as_long_as, sent, target), 20)
        await asyncio.to_thread(nats_server.restart)
        assert nats_bus.stats.disconnects >= round_
    target = len(sent) + 40
    await wait_for(lambda: len(sent) >= target, 20)
    stop.set()
    await publisher
    await wait_for(lambda: len(seen) >= len(sent), 20)
    assert seen == sent
    assert nats_bus.stats.disconnects >= 5
    assert await nats_bus.last_sequence(Kind.EVENT) == len(sent)


async def test_publishing_and_consuming_resume_soon_after_a_restart(
    nats_server: LocalNats, nats_bus: JetStreamBus
) -> None:
    seen: list[str] = []

    async def handler(envelope: AnyEnvelope) -> Outcome:
        seen.append(node_of(envelope))
        return Ack()

    await nats_bus.consume("d", Kind.EVENT, handler)
    publishing = asyncio.ensure_future(nats_bus.publish(event("a"), detail="NodeLeft", timeout_s=10))
    await asyncio.to_thread(nats_server.restart)
    await publishing
    await wait_for(lambda: seen == ["a"], 5)


async def test_connect_gives_up_in_time_when_nobody_is_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bus = JetStreamBus(quick_settings(f"nats://127.0.0.1:{port}", connect_timeout_s=0.5), "test")
    started = time.monotonic()
    with pytest.raises(BusUnavailable, match=f"127.0.0.1:{port}.*gave up after 0.5 s"):
        await bus.connect()
    assert time.monotonic() - started < 60
    assert not bus.connected
    await bus.close()


async def test_connect_gives_up_on_a_port_that_never_greets(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(BusUnavailable):
            await JetStreamBus(quick_settings(url, connect_timeout_s=0.5), "test").connect()


async def test_connect_may_be_tried_again(nats_server: LocalNats) -> None:
    bus = JetStreamBus(quick_settings(nats_server.url, connect_timeout_s=2.0), "test")
    nats_server.kill()
    with pytest.raises(BusUnavailable):
        await bus.connect()
    nats_server.start()
    await bus.connect()
    assert bus.connected
    await bus.close()


async def test_a_frozen_server_is_noticed_and_comes_back(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    """Pings every 0.5 s here; two unanswered ones end the connection."""
    nats_server.freeze()
    try:
        started = time.monotonic()
        await wait_for(lambda: not nats_bus.connected, 10)
        assert time.monotonic() - started < 60
        with pytest.raises(BusUnavailable):
            await nats_bus.publish(event("x", message_id="x"), detail="NodeLeft", timeout_s=0.3)
    finally:
        nats_server.thaw()
    await wait_for(lambda: nats_bus.connected, 10)
    await nats_bus.publish(event("x", message_id="x"), detail="NodeLeft")
    assert await nats_bus.last_sequence(Kind.EVENT) == 1


async def test_a_publish_with_unknown_end_is_stored_once(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    """The server is frozen: the message is on its way, the answer is not. The same id again is stored once."""
    envelope = event("x")
    nats_server.freeze()
    try:
        with pytest.raises(BusUnavailable):
            await nats_bus.publish(envelope, detail="NodeLeft", timeout_s=0.3)
    finally:
        nats_server.thaw()
    await nats_bus.publish(envelope, detail="NodeLeft", timeout_s=5)
    assert await nats_bus.last_sequence(Kind.EVENT) == 1


async def test_a_deleted_consumer_is_made_again_and_repeats_nothing(
    nats_server: LocalNats, nats_bus: JetStreamBus
) -> None:
    seen: list[str] = []

    async def handler(envelope: AnyEnvelope) -> Outcome:
        seen.append(node_of(envelope))
        return Ack()

    await nats_bus.consume("d", Kind.EVENT, handler)
    await nats_bus.publish(event("a"), detail="NodeLeft")
    await wait_for(lambda: seen)
    client = await nats.connect(nats_server.url)
    await client.jetstream().delete_consumer(stream_of(Kind.EVENT).name, "d")
    await client.close()
    await nats_bus.publish(event("b"), detail="NodeLeft")
    await wait_for(lambda: len(seen) == 2, 10)
    assert seen == ["a", "b"]


async def test_memory_streams_are_made_again_after_a_crash(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    """They die with the server; without anybody's doing they are there again for the next core publish."""
    (spec,) = (spec for spec in STREAMS if spec.memory)
    await asyncio.to_thread(nats_server.restart)

    async def exists() -> bool:
        try:
            return await nats_bus.last_sequence(spec.kind) == 0
        except BusUnavailable:
            return False

    await wait_for(exists, 5)


async def test_a_client_that_closed_itself_is_replaced(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    """Some protocol errors make the client end for good; nobody above may notice more than a disconnect."""
    seen: list[str] = []
    heard: list[str] = []

    async def handler(envelope: AnyEnvelope) -> Outcome:
        seen.append(node_of(envelope))
        return Ack()

    async def listener(envelope: AnyEnvelope) -> None:
        heard.append(node_of(envelope))

    await nats_bus.consume("d", Kind.EVENT, handler)
    await nats_bus.listen(Kind.EVENT, listener)
    await nats_bus.publish(event("a"), detail="NodeLeft")
    await wait_for(lambda: seen and heard)
    client = nats_bus._link._client  # type: ignore[union-attr]
    await client._process_err("'maximum connections exceeded'")  # as its parser does for such a line of the server
    await wait_for(lambda: client.is_closed)
    await nats_bus.publish(event("b"), detail="NodeLeft", timeout_s=5)
    await wait_for(lambda: len(seen) == 2 and len(heard) == 2, 5)
    assert seen == heard == ["a", "b"]


async def test_a_deleted_stream_is_made_again_by_the_publisher(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    client = await nats.connect(nats_server.url)
    await client.jetstream().delete_stream(stream_of(Kind.EVENT).name)
    await client.close()
    await nats_bus.publish(event("a"), detail="NodeLeft", timeout_s=5)
    assert await nats_bus.last_sequence(Kind.EVENT) == 1


async def test_soon_messages_wait_for_the_server_and_the_oldest_are_dropped(nats_server: LocalNats) -> None:
    bus = JetStreamBus(quick_settings(nats_server.url, outbound_limit=10), "test")
    await bus.connect()
    nats_server.kill()
    await wait_for(lambda: not bus.connected)
    assert all(bus.publish_soon(report(i), detail="n0") for i in range(1, 31))
    assert bus.stats.dropped == 20
    nats_server.start()

    async def arrived() -> bool:
        return bus.connected and await bus.last_sequence(Kind.REPORT) == 10

    await wait_for(arrived, 10)
    await bus.close()


async def test_closing_while_the_server_is_down_ends_soon(nats_server: LocalNats) -> None:
    async def handler(envelope: AnyEnvelope) -> Outcome:
        return Ack()

    bus = JetStreamBus(quick_settings(nats_server.url), "test")
    await bus.connect()
    await bus.consume("d", Kind.EVENT, handler)
    nats_server.kill()
    await wait_for(lambda: not bus.connected)
    await asyncio.wait_for(bus.close(), 120)


async def test_too_large_for_the_server_is_refused(nats_bus: JetStreamBus) -> None:
    with pytest.raises(ValueError, match="exceeds"):
        await nats_bus.publish(_huge(), detail="JobSubmitted")


def _huge() -> AnyEnvelope:
    from resihp_messages import Envelope
    from resihp_messages.event import JobSubmitted

    return Envelope.of(JobSubmitted(spec={"x": "y" * (1 << 20)}), job="demo", source="t", incarnation="i")


async def test_streams_are_made_once_and_updated(nats_server: LocalNats, nats_bus: JetStreamBus) -> None:
    client = await nats.connect(nats_server.url)
    js = client.jetstream()
    name = stream_of(Kind.EVENT).name
    changed = (await js.stream_info(name)).config
    changed.max_bytes = 12345678
    await js.update_stream(changed)
    others = [JetStreamBus(quick_settings(nats_server.url), f"other{i}") for i in range(3)]
    await asyncio.gather(*(bus.connect() for bus in others))
    config = (await js.stream_info(name)).config
    assert config.max_bytes == stream_of(Kind.EVENT).max_bytes
    assert config.duplicate_window >= 120
    assert len(await js.streams_info()) == len(STREAMS)
    for bus in others:
        await bus.close()
    await client.close()


async def test_a_wrong_token_is_refused(tmp_path: Path, nats_server: LocalNats) -> None:
    with LocalNats(tmp_path / "secured", token="s3cret") as server:
        good = JetStreamBus(quick_settings(server.url), "good")
        await good.connect()
        await good.close()
        bad = JetStreamBus(quick_settings(server.url.replace("s3cret", "guess"), connect_timeout_s=0.6), "bad")
        with pytest.raises(BusRefused, match=r"(?i)authorization") as refused:
            await bad.connect()
        assert "guess" not in str(refused.value)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    class Plain(LocalNats):
        def prepare(self) -> list[str]:
            command = super().prepare()
            config = self.directory / "nats-server.conf"
            config.write_text("max_payload: 1MB\n")
            return command

    with Plain(tmp_path) as server, pytest.raises(BusRefused, match="start nats-server with -js"):
        await JetStreamBus(quick_settings(server.url, connect_timeout_s=0.6), "test").connect()


async def test_a_forbidden_subject_is_told_as_such(tmp_path: Path) -> None:
    class Guarded(LocalNats):
        def prepare(self) -> list[str]:
            command = super().prepare()
            config = self.directory / "nats-server.conf"
            permissions = 'publish: { deny: ["resihp.v1.*.event.>"] }'
            user = f"{{ user: a, password: b, permissions: {{ {permissions} }} }}"
            config.write_text(config.read_text() + f"authorization {{ users: [{user}] }}")
            return command

    with Guarded(tmp_path) as server:
        url = server.url.replace("nats://", "nats://a:b@")
        bus = JetStreamBus(quick_settings(url, publish_attempt_s=0.2), "test")
        await bus.connect()
        with pytest.raises(BusRefused, match="forbids test to publish"):
            await bus.publish(event("a"), detail="NodeLeft", timeout_s=2)
        await bus.close()


async def test_a_program_that_forgets_to_close_still_ends(nats_server: LocalNats) -> None:
    """All loops of the bus end when the event loop cancels them, whatever the client was doing."""
    program = """
import asyncio, sys
from resihp_bus import Ack, JetStreamBus, JetStreamSettings
from resihp_messages import Kind

async def handler(envelope):
    return Ack()

async def main():
    bus = JetStreamBus(JetStreamSettings(url=sys.argv[1]), "careless")
    await bus.connect()
    await bus.consume("d", Kind.EVENT, handler)
    await bus.listen(Kind.EVENT, handler)
    await asyncio.sleep(float(sys.argv[2]))
    raise RuntimeError("a bug")

asyncio.run(main())
"""
    for moment in ("0", "0.005", "0.05"):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, nats_server.url, moment, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 1
        assert b"RuntimeError: a bug" in errors

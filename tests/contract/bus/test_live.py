"""Publishing, listening, requests, replay."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from resihp_bus import Bus, BusRefused, BusUnavailable, Stored
from resihp_messages import AnyEnvelope, Kind
from resihp_messages.report import IterationReport, NodeBeat
from resihp_messages.request import Reply
from support.buses import World
from support.envelopes import beat, event, node_of, reply, report, stop_request
from support.waiting import wait_for


async def test_not_connected_before_connect_and_after_close(world: World) -> None:
    bus = world.bus()
    assert not bus.connected
    with pytest.raises(BusUnavailable):
        await bus.publish(event(), detail="NodeLeft")
    await bus.connect()
    assert bus.connected
    await bus.close()
    assert not bus.connected
    await bus.close()
    with pytest.raises(BusUnavailable):
        await bus.publish(event(), detail="NodeLeft")
    assert bus.publish_soon(report(1), detail="n0") is False


async def test_listeners_get_live_messages_of_stored_and_unstored_kinds(bus: Bus) -> None:
    await bus.publish(event("before"), detail="NodeLeft")
    events: list[str] = []
    beats: list[int] = []

    async def on_event(envelope: AnyEnvelope) -> None:
        events.append(node_of(envelope))

    async def on_beat(envelope: AnyEnvelope) -> None:
        assert isinstance(envelope.body, NodeBeat)
        beats.append(envelope.body.sequence)

    await bus.listen(Kind.EVENT, on_event, detail="NodeLeft")
    await bus.listen(Kind.BEAT, on_beat)
    await bus.publish(event("after"), detail="NodeLeft")
    for i in range(3):
        await bus.publish(beat(i), detail="n0")
    await wait_for(lambda: events and len(beats) == 3)
    assert events == ["after"]
    assert beats == [0, 1, 2]


async def test_a_repeated_message_is_stored_once_and_heard_again(bus: Bus) -> None:
    heard: list[str] = []

    async def listener(envelope: AnyEnvelope) -> None:
        heard.append(envelope.message_id)

    await bus.listen(Kind.EVENT, listener)
    message = event("again")
    before = await bus.last_sequence(Kind.EVENT)
    await bus.publish(message, detail="NodeLeft")
    await bus.publish(message, detail="NodeLeft")
    await wait_for(lambda: len(heard) == 2)
    assert set(heard) == {message.message_id}
    assert await bus.last_sequence(Kind.EVENT) == before + 1


async def test_a_failing_listener_goes_on(bus: Bus) -> None:
    seen: list[str] = []

    async def listener(envelope: AnyEnvelope) -> None:
        seen.append(node_of(envelope))
        raise RuntimeError("bug")

    await bus.listen(Kind.EVENT, listener)
    await bus.publish(event("a"), detail="NodeLeft")
    await bus.publish(event("b"), detail="NodeLeft")
    await wait_for(lambda: len(seen) == 2)
    assert seen == ["a", "b"]


async def test_a_stopped_listener_hears_nothing(bus: Bus) -> None:
    first: list[str] = []
    second: list[str] = []

    async def one(envelope: AnyEnvelope) -> None:
        first.append(node_of(envelope))

    async def two(envelope: AnyEnvelope) -> None:
        second.append(node_of(envelope))

    subscription = await bus.listen(Kind.EVENT, one)
    await bus.listen(Kind.EVENT, two)
    await subscription.stop()
    await subscription.stop()
    await bus.publish(event("a"), detail="NodeLeft")
    await wait_for(lambda: second)
    assert first == []


async def test_publish_soon_is_stored(bus: Bus) -> None:
    for i in range(1, 6):
        assert bus.publish_soon(report(i), detail="n0")

    async def stored() -> bool:
        return await bus.last_sequence(Kind.REPORT) == 5

    await wait_for(stored)
    async with aclosing(bus.replay(Kind.REPORT, after_sequence=0)) as messages:
        got = [await anext(messages) for _ in range(5)]
    assert [m.envelope.body.iteration for m in got if isinstance(m.envelope.body, IterationReport)] == [1, 2, 3, 4, 5]


async def test_publish_soon_never_raises(bus: Bus) -> None:
    assert bus.publish_soon(report(1), detail="not a token") is False


async def test_a_subject_that_is_no_token_is_refused(bus: Bus) -> None:
    with pytest.raises(ValueError, match="not a subject token"):
        await bus.publish(event(), detail="a.b")


async def test_request_and_reply(bus: Bus) -> None:
    async def responder(request: AnyEnvelope) -> AnyEnvelope:
        return reply(accepted=True, reason=request.job, to=request)

    await bus.serve("RequestStop", responder)
    asked = stop_request(job="demo")
    answer = await bus.request(asked, detail="RequestStop")
    assert isinstance(answer.body, Reply)
    assert (answer.body.accepted, answer.body.reason, answer.correlation_id) == (True, "demo", asked.message_id)


async def test_a_failing_responder_answers_with_a_refusal(bus: Bus) -> None:
    async def responder(request: AnyEnvelope) -> AnyEnvelope:
        raise RuntimeError("disk full")

    await bus.serve("RequestStop", responder)
    answer = await bus.request(stop_request(), detail="RequestStop")
    assert isinstance(answer.body, Reply)
    assert not answer.body.accepted
    assert "disk full" in answer.body.reason


async def test_a_request_that_nobody_answers(bus: Bus) -> None:
    with pytest.raises(BusUnavailable):
        await bus.request(stop_request(), detail="RequestStop", timeout_s=0.3)


async def test_a_request_waits_for_a_server_that_comes(bus: Bus) -> None:
    """A leader may be about to take over."""

    async def responder(request: AnyEnvelope) -> AnyEnvelope:
        return reply(accepted=True, to=request)

    asking = asyncio.ensure_future(bus.request(stop_request(), detail="RequestStop", timeout_s=5))
    await asyncio.sleep(0.05)
    assert not asking.done()
    await bus.serve("RequestStop", responder)
    assert isinstance((await asking).body, Reply)


async def test_a_slow_answer_is_no_answer(bus: Bus) -> None:
    released = asyncio.Event()

    async def responder(request: AnyEnvelope) -> AnyEnvelope:
        await released.wait()
        return reply(accepted=True, to=request)

    await bus.serve("RequestStop", responder)
    with pytest.raises(BusUnavailable):
        await bus.request(stop_request(), detail="RequestStop", timeout_s=0.2)
    released.set()


async def test_replay_gives_history_then_live(bus: Bus) -> None:
    for node in ("a", "b", "c"):
        await bus.publish(event(node), detail="NodeLeft")
    async with aclosing(bus.replay(Kind.EVENT, after_sequence=1)) as messages:
        got: list[Stored] = [await anext(messages), await anext(messages)]
        await bus.publish(event("d"), detail="NodeLeft")
        got.append(await anext(messages))
    assert [(m.sequence, node_of(m.envelope)) for m in got] == [(2, "b"), (3, "c"), (4, "d")]


async def test_replay_from_now_on(bus: Bus) -> None:
    await bus.publish(event("old"), detail="NodeLeft")
    async with aclosing(bus.replay(Kind.EVENT, after_sequence=None)) as messages:
        waiting = asyncio.ensure_future(anext(messages))

        async def heard() -> bool:  # said again and again: nobody tells when the replay has begun to listen
            await bus.publish(event("new"), detail="NodeLeft")
            return waiting.done()

        await wait_for(heard)
        assert node_of((await waiting).envelope) == "new"


async def test_replay_filters_and_skips_malformed(world: World, bus: Bus) -> None:
    await bus.publish(event("a", job="other"), detail="NodeLeft")
    await world.inject("resihp.v1.demo.event.NodeLeft", b"\xc1")
    await bus.publish(event("b"), detail="NodeLeft")
    async with aclosing(bus.replay(Kind.EVENT, after_sequence=0, job="demo")) as messages:
        assert node_of((await anext(messages)).envelope) == "b"
    assert world.stats(bus).malformed == 1


async def test_replay_position_of_another_life_starts_over(bus: Bus) -> None:
    await bus.publish(event("a"), detail="NodeLeft")
    async with aclosing(bus.replay(Kind.EVENT, after_sequence=10_000)) as messages:
        assert node_of((await anext(messages)).envelope) == "a"


async def test_replay_ends_when_the_bus_closes(world: World) -> None:
    bus = world.bus()
    await bus.connect()
    await bus.publish(event("a"), detail="NodeLeft")

    heard: list[str] = []

    async def read() -> None:
        async for message in bus.replay(Kind.EVENT, after_sequence=0):
            heard.append(node_of(message.envelope))

    reading = asyncio.ensure_future(read())
    await wait_for(lambda: heard)
    await bus.close()
    await asyncio.wait_for(reading, 120)
    assert heard == ["a"]


async def test_replay_goes_on_after_a_crash_of_the_server(world: World, bus: Bus) -> None:
    await bus.publish(event("a"), detail="NodeLeft")
    async with aclosing(bus.replay(Kind.EVENT, after_sequence=0)) as messages:
        assert node_of((await anext(messages)).envelope) == "a"
        waiting = asyncio.ensure_future(anext(messages))
        world.down()
        await wait_for(lambda: not bus.connected)
        world.up()
        await wait_for(lambda: bus.connected)
        await bus.publish(event("b"), detail="NodeLeft")
        assert node_of((await asyncio.wait_for(waiting, 120)).envelope) == "b"


async def test_last_sequence(bus: Bus) -> None:
    assert await bus.last_sequence(Kind.EVENT) == 0
    await bus.publish(event("a"), detail="NodeLeft")
    assert await bus.last_sequence(Kind.EVENT) == 1


async def test_outage_is_told_to_the_publisher_and_mends(world: World, bus: Bus) -> None:
    world.down()
    await wait_for(lambda: not bus.connected)
    with pytest.raises(BusUnavailable):
        await bus.publish(event("a", message_id="x"), detail="NodeLeft", timeout_s=0.3)
    with pytest.raises(BusUnavailable):
        await bus.publish(beat(1), detail="n0")
    late = asyncio.ensure_future(bus.publish(event("a", message_id="x"), detail="NodeLeft", timeout_s=5))
    await asyncio.sleep(0.05)
    world.up()
    await late
    assert await bus.last_sequence(Kind.EVENT) == 1


async def test_connect_without_a_server(world: World) -> None:
    world.down()
    with pytest.raises(BusUnavailable):
        await world.bus().connect()


def test_errors_have_one_root() -> None:
    from resihp_bus import BusError

    assert issubclass(BusUnavailable, BusError)
    assert issubclass(BusRefused, BusError)

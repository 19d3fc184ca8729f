"""Durable consumption: order, at least once, retries, dead letters, restarts."""

from __future__ import annotations

import asyncio

import pytest

from resihp_bus import Ack, Bus, Outcome, Reject, Retry
from resihp_messages import AnyEnvelope, Kind
from support.buses import World
from support.envelopes import ack, event, node_of
from support.waiting import wait_for


class Recorder:
    """A handler that notes what it saw; `script` gives the outcomes for a node, in order, then Ack."""

    def __init__(self, script: dict[str, list[Outcome | Exception]] | None = None) -> None:
        self.seen: list[str] = []
        self.script = script or {}

    async def __call__(self, envelope: AnyEnvelope) -> Outcome:
        self.seen.append(node_of(envelope))
        planned = self.script.get(self.seen[-1], [])
        outcome = planned.pop(0) if planned else Ack()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def publish(bus: Bus, *nodes: str, job: str = "demo") -> None:
    for node in nodes:
        await bus.publish(event(node, job=job), detail="NodeLeft")


async def test_delivers_stored_and_new_messages_in_order(bus: Bus) -> None:
    await publish(bus, "a", "b", "c")
    handler = Recorder()
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: len(handler.seen) == 3)
    await publish(bus, "d", "e")
    await wait_for(lambda: len(handler.seen) == 5)
    assert handler.seen == ["a", "b", "c", "d", "e"]


async def test_envelope_arrives_unchanged(bus: Bus) -> None:
    sent = event("a")
    got: list[AnyEnvelope] = []

    async def handler(envelope: AnyEnvelope) -> Outcome:
        got.append(envelope)
        return Ack()

    await bus.consume("d", Kind.EVENT, handler)
    await bus.publish(sent, detail="NodeLeft")
    await wait_for(lambda: got)
    assert got == [sent]
    assert type(got[0].body) is type(sent.body)


async def test_filters_by_kind_job_and_detail(bus: Bus) -> None:
    handler = Recorder()
    await bus.consume("d", Kind.EVENT, handler, job="one", detail="NodeLeft")
    await bus.publish(ack("other kind", job="one"), detail="n0")
    await bus.publish(event("wrong-detail", job="one"), detail="Other")
    await publish(bus, "wrong-job", job="two")
    await publish(bus, "right", job="one")
    await wait_for(lambda: handler.seen)
    assert handler.seen == ["right"]


async def test_a_repeated_message_id_is_delivered_once(bus: Bus) -> None:
    handler = Recorder()
    for _ in range(3):
        await bus.publish(event("a", message_id="same"), detail="NodeLeft")
    await publish(bus, "end")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "end" in handler.seen)
    assert handler.seen == ["a", "end"]


async def test_a_retried_message_holds_back_later_ones(bus: Bus) -> None:
    handler = Recorder({"a": [Retry(0.05), Retry(0.05)]})
    await publish(bus, "a", "b", "c")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "c" in handler.seen)
    assert handler.seen == ["a", "a", "a", "b", "c"]


async def test_an_explicit_retry_never_runs_out(world: World, bus: Bus) -> None:
    handler = Recorder({"a": [Retry(0.001)] * (world.max_tries * 4)})
    await publish(bus, "a", "b")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "b" in handler.seen)
    assert handler.seen.count("a") == world.max_tries * 4 + 1
    assert world.stats(bus).rejected == 0


async def test_a_failing_handler_is_tried_again_then_the_message_is_dead(world: World, bus: Bus) -> None:
    handler = Recorder({"a": [RuntimeError("bug")] * 99, "b": [RuntimeError("once")]})
    await publish(bus, "a", "b", "c")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "c" in handler.seen)
    assert handler.seen == ["a"] * world.max_tries + ["b", "b", "c"]
    assert world.stats(bus).rejected == 1
    assert world.stats(bus).handler_errors == world.max_tries + 1


async def test_a_rejected_message_never_comes_again(world: World, bus: Bus) -> None:
    handler = Recorder({"a": [Reject("no such node")]})
    await publish(bus, "a", "b")
    first = await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "b" in handler.seen)
    await first.stop()
    again = Recorder()
    await bus.consume("d", Kind.EVENT, again)
    await publish(bus, "c")
    await wait_for(lambda: again.seen)
    assert again.seen == ["c"]
    assert world.stats(bus).rejected == 1


async def test_malformed_messages_are_counted_and_skipped(world: World, bus: Bus) -> None:
    handler = Recorder()
    await publish(bus, "a")
    for raw in (b"", b"\xc1", b"not messagepack at all", b"\x81\xa6schema\xa8Foreign."):
        await world.inject("resihp.v1.demo.event.NodeLeft", raw)
    await publish(bus, "b")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "b" in handler.seen)
    assert handler.seen == ["a", "b"]
    assert world.stats(bus).malformed == 4
    assert world.stats(bus).rejected == 4


async def test_a_successor_goes_on_where_the_predecessor_stopped(world: World, bus: Bus) -> None:
    await publish(bus, "a", "b")
    first = Recorder()
    subscription = await bus.consume("d", Kind.EVENT, first)
    await wait_for(lambda: len(first.seen) == 2)
    await subscription.stop()
    await publish(bus, "c")
    other = world.bus("other")
    await other.connect()
    second = Recorder()
    await other.consume("d", Kind.EVENT, second)
    await wait_for(lambda: second.seen)
    await other.close()
    assert (first.seen, second.seen) == (["a", "b"], ["c"])


async def test_an_unsettled_message_comes_first_for_the_successor(world: World, bus: Bus) -> None:
    await publish(bus, "a", "b", "c")
    handler = Recorder({"b": [Retry(30.0)]})
    subscription = await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "b" in handler.seen)
    await subscription.stop()
    successor = Recorder()
    await bus.consume("d", Kind.EVENT, successor)
    await wait_for(lambda: len(successor.seen) == 2)
    assert successor.seen == ["b", "c"]


async def test_two_durables_are_independent(bus: Bus) -> None:
    one, two = Recorder(), Recorder()
    await publish(bus, "a")
    await bus.consume("one", Kind.EVENT, one)
    await bus.consume("two", Kind.EVENT, two)
    await wait_for(lambda: one.seen and two.seen)
    assert one.seen == two.seen == ["a"]


async def test_stop_waits_for_the_handler_in_progress(bus: Bus) -> None:
    entered, release, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handler(envelope: AnyEnvelope) -> Outcome:
        entered.set()
        await release.wait()
        done.set()
        return Ack()

    subscription = await bus.consume("d", Kind.EVENT, handler)
    await publish(bus, "a", "b")
    await entered.wait()
    stopping = asyncio.ensure_future(subscription.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    release.set()
    await stopping
    assert done.is_set()
    await subscription.stop()  # idempotent


async def test_a_slow_handler_keeps_its_message(bus: Bus) -> None:
    """Longer than the server's patience (ack_wait 1 s): no second delivery, order kept."""
    seen: list[str] = []

    async def handler(envelope: AnyEnvelope) -> Outcome:
        seen.append(node_of(envelope))
        if seen[-1] == "slow":
            await asyncio.sleep(1.6)
        return Ack()

    await publish(bus, "slow", "b", "c")
    await bus.consume("d", Kind.EVENT, handler)
    await wait_for(lambda: "c" in seen)
    assert seen == ["slow", "b", "c"]


async def test_consumers_survive_a_crash_of_the_server(world: World, bus: Bus) -> None:
    handler = Recorder()
    await bus.consume("d", Kind.EVENT, handler)
    await publish(bus, "a")
    await wait_for(lambda: handler.seen)
    world.down()
    await wait_for(lambda: not bus.connected)
    world.up()
    await wait_for(lambda: bus.connected)
    await publish(bus, "b")
    await wait_for(lambda: "b" in handler.seen)
    assert handler.seen == ["a", "b"]


@pytest.mark.parametrize("kind", [Kind.BEAT, Kind.REQUEST, Kind.REPLY])
async def test_only_stored_kinds_can_be_consumed(bus: Bus, kind: Kind) -> None:
    with pytest.raises(ValueError, match="not stored"):
        await bus.consume("d", kind, Recorder())


async def test_many_messages_keep_their_order(bus: Bus) -> None:
    nodes = [f"n{i}" for i in range(300)]
    handler = Recorder()
    await bus.consume("d", Kind.EVENT, handler, batch=16)
    await publish(bus, *nodes)
    await wait_for(lambda: len(handler.seen) >= 300, 30)
    assert handler.seen == nodes

"""What must arrive arrives once, in order, whenever the bus is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from resihp_agent.announcer import Announcer, detail_of
from resihp_agent.outbox import Outbox
from resihp_bus import MemoryBroker, MemoryBus
from resihp_messages import Kind, ack, decode, event
from support.waiting import wait_for


@contextlib.asynccontextmanager
async def outbox(broker: MemoryBroker) -> AsyncIterator[tuple[Outbox, Announcer]]:
    bus = MemoryBus(broker, "agent-n0")
    await bus.connect()
    box = Outbox(bus, retry_s=0.01)
    task = asyncio.create_task(box.run())
    try:
        yield box, Announcer(bus, box, node="n0", incarnation="a1")
    finally:
        task.cancel()
        await bus.close()


def left(n: int) -> event.NodeLeft:
    return event.NodeLeft(node=f"n{n}")


async def test_order_is_kept_across_an_outage() -> None:
    broker = MemoryBroker()
    async with outbox(broker) as (box, announcer):
        announcer.say(left(0))
        assert await box.flush(5.0)
        broker.available = False
        for n in range(1, 20):
            announcer.say(left(n))
        assert not await box.flush(0.05)
        assert box.depth == 19
        broker.available = True
        assert await box.flush(5.0)
        stored = [decode(record.raw).body for record in broker.streams[Kind.EVENT]]
        assert [body.node for body in stored] == [f"n{n}" for n in range(20)]  # type: ignore[attr-defined]
        assert box.depth == 0


async def test_what_cannot_be_sent_does_not_block_the_rest() -> None:
    broker = MemoryBroker()
    async with outbox(broker) as (box, announcer):
        too_large = event.JobSubmitted(spec={"x": "y" * (1 << 20)})
        announcer.say(too_large)
        announcer.say(left(1))
        await wait_for(lambda: len(broker.streams[Kind.EVENT]) == 1)
        assert box.num_refused == 1


def test_subject_details() -> None:
    assert detail_of(left(0), "n7") == "NodeLeft"
    assert detail_of(ack.PlanRejected(node="n7", reconfiguration_id="r", reason=""), "n7") == "n7"

"""Failure events straight from NATS, in ten lines: `python examples/subscribe.py nats://127.0.0.1:4222 [AFTER]`."""

import asyncio
import sys

import msgpack
from nats import connect
from nats.js.api import ConsumerConfig, DeliverPolicy


async def main(url: str, after: int = 0) -> None:
    js = (await connect(url)).jetstream()
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1)
    events = await js.subscribe("resihp.v1.*.event.>", ordered_consumer=True, config=config)
    async for message in events.messages:
        event = msgpack.unpackb(message.data)
        print(message.metadata.sequence.stream, event["job"], event["schema"], event["body"], flush=True)


asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))

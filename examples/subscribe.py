"""Failure events straight from NATS: `python examples/subscribe.py nats://127.0.0.1:4222 [AFTER [SEED [NAME]]]`."""

import asyncio
import sys
from contextlib import suppress

import msgpack
from nats import connect
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError


async def main(url: str, after: str = "0", seed: str | None = None, name: str = "operator") -> None:
    client = await connect(url, nkeys_seed=seed, inbox_prefix=f"_INBOX_{name}")
    here, js = f"_INBOX_{name}.events", client.jetstream()
    events = await client.subscribe(here)
    start = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=int(after) + 1)
    start.filter_subject = "resihp.v1.*.event.*"
    with suppress(NotFoundError):  # the reader of an earlier run, which began elsewhere
        await js.delete_consumer("RESIHP_EVENT", name)
    await js.add_consumer("RESIHP_EVENT", start, name=name, deliver_subject=here, ack_policy=AckPolicy.NONE)
    async for message in events.messages:
        event = msgpack.unpackb(message.data)
        print(message.metadata.sequence.stream, event["job"], event["schema"], event["body"], flush=True)


asyncio.run(main(*sys.argv[1:]))

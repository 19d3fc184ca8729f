"""Parts of the bus without a server: subject matching, rate limit, mailbox, decoding."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_bus import BusStats, BusUnavailable, MemoryBroker, MemoryBus
from resihp_bus.delivery import Decoder
from resihp_bus.mailbox import Mailbox
from resihp_bus.memory import matches
from resihp_bus.settings import mask_url
from resihp_bus.stats import RateLimit
from resihp_messages import Kind, MalformedMessage, encode
from support.envelopes import beat, event
from support.waiting import wait_for

TOKEN = st.sampled_from(["a", "b", "c"])


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
    ],
)
def test_subjects_match_as_on_the_server(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected


@given(tokens=st.lists(TOKEN, min_size=1, max_size=4), data=st.data())
@settings(deadline=None)
def test_a_pattern_made_from_a_subject_matches_it(tokens: list[str], data: st.DataObject) -> None:
    pattern = [data.draw(st.sampled_from([token, "*"])) for token in tokens]
    assert matches(".".join(pattern), ".".join(tokens))
    cut = data.draw(st.integers(0, len(tokens) - 1))
    assert matches(".".join([*pattern[:cut], ">"]), ".".join(tokens))
    assert not matches(".".join(pattern), ".".join([*tokens, "more"]))


def test_rate_limit_says_how_much_it_swallowed() -> None:
    now = [0.0]
    limit = RateLimit(period_s=5.0, now=lambda: now[0])
    assert limit.allow("a") == 0
    assert [limit.allow("a") for _ in range(3)] == [None] * 3
    assert limit.allow("b") == 0
    now[0] = 5.0
    assert limit.allow("a") == 3
    assert limit.allow("a") is None


async def test_a_full_mailbox_drops_the_oldest() -> None:
    stats, seen = BusStats(), []
    entered, release = asyncio.Event(), asyncio.Event()

    async def handle(item: int) -> None:
        entered.set()
        await release.wait()
        seen.append(item)

    mailbox = Mailbox(handle, stats=stats, limit=3)
    mailbox.put(0)
    await entered.wait()
    for item in range(1, 6):
        mailbox.put(item)
    release.set()
    await wait_for(lambda: len(seen) == 4)
    assert seen == [0, 3, 4, 5]
    assert stats.dropped == 2
    await mailbox.stop()
    mailbox.put(9)
    assert seen == [0, 3, 4, 5]


def test_malformed_input_is_logged_once_per_source(capsys: pytest.CaptureFixture[str]) -> None:
    stats = BusStats()
    decode = Decoder(stats)
    for source in ("one", "one", "two"):
        assert isinstance(decode(b"\xc1", source), MalformedMessage)
    assert stats.malformed == 3
    assert capsys.readouterr().out.count("malformed message") == 2
    envelope = event()
    assert decode(encode(envelope), "one") == envelope


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://user:pass@host:4222", "nats://***@host:4222"),
        ("nats://token@host", "nats://***@host"),
        ("postgresql+asyncpg://me:p@ss@db/x", "postgresql+asyncpg://***@db/x"),
        ("sqlite+aiosqlite:///a/b.db", "sqlite+aiosqlite:///a/b.db"),
    ],
)
def test_masked_urls(url: str, shown: str) -> None:
    assert mask_url(url) == shown


async def test_memory_broker_shows_what_is_stored() -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    await bus.connect()
    sent = event("a")
    await bus.publish(sent, detail="NodeLeft")
    await bus.publish(beat(1), detail="n0")
    assert broker.stored(Kind.EVENT) == (sent,)
    broker.available = False
    assert not bus.connected
    with pytest.raises(BusUnavailable):
        await bus.publish(beat(2), detail="n0")
    await bus.close()

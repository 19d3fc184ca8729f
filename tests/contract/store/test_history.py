"""Lists and filters answer alike on every database."""

from __future__ import annotations

from datetime import timedelta

from resihp_messages import Envelope, event
from resihp_store import Store, history
from support.store import NOON, incident, reconfiguration, spec

PAGE = history.Page(limit=10, newest_first=True)


async def fill(store: Store) -> None:
    """Incident k concerns ranks k and 10 + k; its change follows. Three kinds of events, in turn."""
    token = await store.lease(holder="t", ttl_s=60).acquire()
    assert token is not None
    async with store.transaction(token) as work:
        await work.add_job("j", spec(name="j"))
        for k in range(4):
            at, kind = NOON + timedelta(minutes=k), ("worker_lost", "device_slow")[k % 2]
            await work.add_incident(incident("j", f"i{k}", kind=kind, ranks=(k, 10 + k), opened_at=at))
            await work.add_reconfiguration(
                reconfiguration("j", f"r{k}", incident_id=f"i{k}", old_epoch=k, new_epoch=k + 1, created_at=at)
            )
        for k in range(9):
            body = (event.NodeLeft(node="n"), event.JobFailed(reason="x"), event.ModeChanged(mode="act"))[k % 3]
            await work.record_event(Envelope.of(body, job="j", source="s", incarnation="i"))


async def test_filters_by_device_kind_and_time(store: Store) -> None:
    await fill(store)
    async with store.read() as connection:

        async def incidents(page: history.Page = PAGE, **chosen: object) -> list[str]:
            return [i.id for i in await history.incidents(connection, page, job="j", **chosen)]  # type: ignore[arg-type]

        async def changes(page: history.Page = PAGE, **chosen: object) -> list[str]:
            return [c.id for c in await history.reconfigurations(connection, page, **chosen)]  # type: ignore[arg-type]

        assert await incidents() == ["i3", "i2", "i1", "i0"]
        assert await incidents(rank=1) == ["i1"]  # not 10, 11, 12, 13
        assert await incidents(rank=12) == ["i2"]
        assert await incidents(rank=2, kind="device_slow") == []
        assert await incidents(rank=99) == await changes(rank=99) == []
        assert await changes(rank=13) == ["r3"]
        assert await changes(kind="worker_lost", job="j") == ["r2", "r0"]
        window = history.Page(limit=10, since=NOON + timedelta(minutes=1), until=NOON + timedelta(minutes=3))
        assert await changes(window) == ["r1", "r2"]
        assert await changes(window, rank=11, kind="device_slow") == ["r1"]
        second = history.Page(limit=2, newest_first=True, after=(NOON + timedelta(minutes=2), "r2"))
        assert await changes(second) == ["r1", "r0"]
        assert await history.achieved(connection, ["r1", "nobody"]) == {"r1": None}


async def test_events_of_some_names_newest_first(store: Store) -> None:
    await fill(store)
    async with store.read() as connection:

        async def events(*names: str, **chosen: object) -> list[int]:
            found = await history.events(connection, names=names, **chosen)  # type: ignore[arg-type]
            return [e.sequence for e in found]

        assert await events() == list(range(9, 0, -1))
        assert await events("NodeLeft", "ModeChanged", job="j") == [9, 7, 6, 4, 3, 1]
        assert await events("NodeLeft", "ModeChanged", limit=3) == [9, 7, 6]
        assert await events("JobFailed", before_sequence=8) == [5, 2]
        assert await events("JobFailed", job="other") == []

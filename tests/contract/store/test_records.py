"""What is written is read back equal, on both databases; half a transaction is none."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from resihp_messages import Envelope, Kind, command, decode, event
from resihp_store import (
    AckRecord,
    DeviceState,
    IterationRecord,
    JobState,
    ReconfigurationStatus,
    Store,
    queries,
)
from support.store import device, incident, node, plan_row, reconfiguration, spec


@pytest.fixture
async def token(store: Store) -> int:
    taken = await store.lease(holder="test", ttl_s=60).acquire()
    assert taken is not None
    return taken


async def test_job_through_its_life(store: Store, token: int) -> None:
    async with store.transaction(token) as work:
        await work.add_job("b", spec(name="b", iterations=9))
        await work.add_job("a", spec(name="a"))
        await work.add_plan(plan_row("b", 1))
        await work.add_plan(plan_row("b", 2))
        await work.mark_installed("b", 1)
        await work.set_job("b", JobState.RUNNING)
        await work.set_committed("b", 5)
        await work.set_committed("b", 4)  # never goes back
    async with store.read() as connection:
        names = [job.job for job in await queries.jobs(connection)]
        job = await queries.job(connection, "b")
        assert await queries.job(connection, "nobody") is None
        assert [j.job for j in await queries.jobs(connection, states=[JobState.SUBMITTED])] == ["a"]
    assert names == ["b", "a"]  # order of submission
    assert job is not None
    assert (job.state, job.iterations, job.committed) == (JobState.RUNNING, 9, 5)
    assert (job.epoch, job.plan_digest) == (1, f"{1:064x}")  # issued is not installed
    assert job.submitted_at.utcoffset() == timedelta(0)
    assert job.started_at is not None
    async with store.transaction(token) as work:
        await work.set_job("b", JobState.FINISHED, samples_expected=7, samples_once=7, final_loss=1.5)
    async with store.read() as connection:
        job = await queries.job(connection, "b")
    assert job is not None
    assert (job.state, job.samples_once, job.final_loss) == (JobState.FINISHED, 7, 1.5)
    assert job.finished_at is not None


async def test_rows_come_back_equal(store: Store, token: int) -> None:
    rows = {
        "node": node("n0"),
        "device": device("j", 3, result={"committed": 4}),
        "plan": plan_row("j", 2),
        "incident": incident("j"),
        "reconfiguration": reconfiguration("j", incident_id="i1", phases_s={"plan": 0.1}, proof={"samples_once": True}),
        "ack": AckRecord("r1", "n0", "PlanApplied", {"committed": 3}),
    }
    async with store.transaction(token) as work:
        await work.add_job("j", spec(name="j"))
        await work.put_node(rows["node"])
        await work.add_devices([device("j", 5), rows["device"]])
        await work.add_plan(rows["plan"])
        await work.add_incident(rows["incident"])
        await work.add_reconfiguration(rows["reconfiguration"])
        await work.add_ack(rows["ack"])
        await work.add_ack(rows["ack"])  # twice is once
    async with store.read() as connection:
        assert await queries.nodes(connection) == (rows["node"],)
        assert (await queries.devices(connection, "j"))[0] == rows["device"]
        assert len(await queries.occupied(connection)) == 2
        assert await queries.plans(connection, "j") == (rows["plan"],)
        assert await queries.incidents(connection, job_name="j") == (rows["incident"],)
        assert await queries.incident(connection, "i1") == rows["incident"]
        assert await queries.reconfigurations(connection) == (rows["reconfiguration"],)
        assert await queries.reconfiguration(connection, "r1") == rows["reconfiguration"]
        assert await queries.acks(connection, "r1") == (rows["ack"],)
    async with store.transaction(token) as work:
        await work.put_node(replace(rows["node"], incarnation="n0-2", num_slots=8))
        await work.set_devices("j", [3], DeviceState.LOST)
        await work.close_incident("i1", "repaired")
        await work.set_reconfiguration("r1", status="applied", applied_at=work.now, bytes_moved=9)
        await work.set_job("j", JobState.STOPPED, reason="operator")
    async with store.read() as connection:
        assert (await queries.nodes(connection))[0].num_slots == 8
        assert [d.state for d in await queries.devices(connection, "j")] == [DeviceState.LOST, DeviceState.HEALTHY]
        assert await queries.occupied(connection) == ()  # the job has ended
        closed = await queries.incident(connection, "i1")
        assert closed is not None
        assert closed.resolution == "repaired"
        assert closed.closed_at is not None
        planned = await queries.reconfigurations(connection, job_name="j", status=ReconfigurationStatus.PLANNED)
        assert planned == ()


async def test_a_failed_transaction_leaves_nothing(store: Store, token: int) -> None:
    async def half_way() -> None:
        async with store.transaction(token) as work:
            await work.add_job("j", spec(name="j"))
            assert await work.claim("m1")
            await work.send(_event("m2"), detail="JobFailed")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        await half_way()
    assert not store.outbox_filled.is_set()
    assert await store.unsent(10) == ()
    async with store.read() as connection:
        assert await queries.jobs(connection) == ()
        assert await queries.events(connection) == ()
    async with store.transaction(token) as work:
        assert await work.claim("m1")
        assert not await work.claim("m1")


def _event(message_id: str, reason: str = "why") -> Envelope[event.JobFailed]:
    body = event.JobFailed(reason=reason)
    return Envelope.of(body, job="j", source="scheduler", incarnation="x", epoch=3, message_id=message_id)


async def test_outbox_and_log(store: Store, token: int) -> None:
    order = Envelope.of(
        command.StopJob(node="n0", token=token, reason="end"), job="j", source="scheduler", incarnation="x"
    )
    async with store.transaction(token) as work:
        await work.send(order, detail="n0")
        await work.send(_event("e1"), detail="JobFailed")
        await work.send(_event("e1"), detail="JobFailed")  # the same message twice is one message
        await work.record_event(_event("e2", "seen, not sent"))
        await work.set_cursor("reports", 5)
        await work.set_cursor("reports", 8)
    assert store.outbox_filled.is_set()
    unsent = await store.unsent(10)
    assert [(m.job, m.kind, m.detail) for m in unsent] == [("j", Kind.COMMAND, "n0"), ("j", Kind.EVENT, "JobFailed")]
    assert decode(unsent[0].payload) == order
    async with store.read() as connection:
        log = await queries.events(connection)
        assert [e.message_id for e in log] == ["e1", "e2"]
        assert (log[0].name, log[0].epoch, log[0].body) == ("JobFailed", 3, {"reason": "why"})
        assert await queries.events(connection, after_sequence=log[0].sequence) == log[1:]
        assert await queries.events(connection, name="JobStarted") == ()
        assert len(await queries.events(connection, job_name="j", limit=1)) == 1
        assert await queries.cursor(connection, "reports") == 8
        assert await queries.cursor(connection, "other") == 0
    async with store.transaction(token) as work:
        await work.mark_sent([m.id for m in unsent])
    assert await store.unsent(10) == ()
    await store.prune(token, keep_s=-1)
    async with store.transaction(token) as work:
        await work.send(order, detail="n0")  # forgotten, so it is new again
    assert len(await store.unsent(10)) == 1


async def test_replies_are_kept(store: Store, token: int) -> None:
    reply = _event("any")
    async with store.transaction(token) as work:
        assert await work.reply_of("q1") is None
        await work.claim("q1")
        await work.keep_reply("q1", reply)
    async with store.transaction(token) as work:
        raw = await work.reply_of("q1")
    assert raw is not None
    assert decode(raw) == reply


async def test_iteration_summaries_of_two_nodes_merge(store: Store, token: int) -> None:
    first = IterationRecord("j", 1, 1, None, 0.5, 1000, 16, 16, 100)
    second = IterationRecord("j", 1, 1, 2.5, 0.75, 1000, 16, 16, 90)
    many = [IterationRecord("j", i, 1, 2.0, 0.5, 1000, 16, 16, None) for i in range(2, 600)]
    async with store.transaction(token) as work:
        await work.add_job("j", spec(name="j"))
        await work.put_iterations([first])
        await work.put_iterations([second])
        await work.put_iterations([])
        await work.put_iterations(many)
        await work.put_iterations(many)
    async with store.read() as connection:
        rows = await queries.iterations(connection, "j", limit=10_000)
        assert len(rows) == 599
        assert rows[0] == IterationRecord("j", 1, 1, 2.5, 0.75, 1000, 16, 16, 100)
        assert rows[0].tokens_per_s == pytest.approx(1000 / 0.75)
        assert len(await queries.iterations(connection, "j", after=590)) == 9
        assert await queries.iterations(connection, "j", epoch=2) == ()


async def test_eight_writers_and_readers_without_an_error(store: Store, token: int) -> None:
    """Deferred transactions fail here with "database is locked" (docs: BEGIN IMMEDIATE)."""

    async def write(index: int) -> None:
        for number in range(10):
            async with store.transaction(token) as work:
                seen = await queries.cursor(work.connection, "shared")
                await work.set_cursor("shared", seen + 1)
                await work.record_event(_event(f"w{index}-{number}"))
            async with store.read() as connection:
                await queries.events(connection, limit=5)

    await asyncio.gather(*(write(i) for i in range(8)))
    async with store.read() as connection:
        assert await queries.cursor(connection, "shared") == 80
        sequences = [e.sequence for e in await queries.events(connection)]
    assert len(sequences) == 80
    assert sequences == sorted(sequences)

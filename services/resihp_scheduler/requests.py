"""What operators and tools ask for. One answer per message id; `accepted` only after the commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from resihp_bus import Responder
from resihp_messages import AnyEnvelope, command, decode
from resihp_messages.request import Reply, RequestFault, RequestPlan, RequestRestart, RequestStop, SubmitJob
from resihp_plan import InvalidPlan, ParallelPlan
from resihp_scheduler import changes, endings, returns
from resihp_scheduler.changes import Cause
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan, in_thread
from resihp_scheduler.situation import Situation, load, ranks_text
from resihp_scheduler.submission import submit
from resihp_scheduler.term import Term
from resihp_store import JobState, LeadershipLost, StoreUnavailable, UnitOfWork

Answer = Callable[[Term, AnyEnvelope], Awaitable[Reply]]


def refused(reason: str) -> Reply:
    return Reply(accepted=False, reason=reason[:4096])


async def submit_job(term: Term, envelope: AnyEnvelope) -> Reply:
    body = envelope.body
    assert isinstance(body, SubmitJob)
    async with term.transaction() as work:
        if (known := await _known(work, envelope)) is not None:
            return known
        reason = await submit(term, work, envelope, body.spec)
        return refused(reason) if reason else await _accept(term, work, envelope, Reply(accepted=True))


async def request_plan(term: Term, envelope: AnyEnvelope) -> Reply:
    """Switch a healthy job to the operator's plan, live. One change at a time."""
    body = envelope.body
    assert isinstance(body, RequestPlan)
    received_s = term.clock.monotonic()
    async with term.lock(envelope.job):
        async with term.store.read() as connection:
            situation = await load(connection, envelope.job)
        if situation is None or situation.job.state is not JobState.RUNNING:
            return refused(_not_running(envelope.job, situation))
        choice = await _choose(term, situation, body)
        async with term.transaction() as work:
            if (known := await _known(work, envelope)) is not None:
                return known
            if isinstance(choice, NoPlan):
                return Reply(accepted=False, reason=choice.reason[:4096], temporary=situation.open is not None)
            plan_s = term.clock.monotonic() - received_s
            cause = Cause("planned", body.reason, correlation_id=envelope.message_id, plan_s=plan_s)
            identifier = await changes.issue(term, work, situation, choice, cause)
            return await _accept(term, work, envelope, Reply(accepted=True, reconfiguration_id=identifier))


async def _choose(term: Term, situation: Situation, body: RequestPlan) -> Choice | NoPlan:
    if situation.open is not None:
        change = situation.open
        return NoPlan(f"a {change.mode} change to epoch {change.new_epoch} is under way; try again after it")
    planning = JobPlanning(situation.spec)
    try:
        wanted = ParallelPlan.from_dict({"epoch": 0, **body.plan})
        return await in_thread(lambda: planning.requested(situation, wanted), term.settings.plan_deadline_s)
    except InvalidPlan as error:
        return NoPlan(f"invalid plan: {error}")


def _not_running(job: str, situation: Situation | None) -> str:
    return f"there is no job {job!r}" if situation is None else f"job {job!r} is {situation.job.state}, not running"


async def request_fault(term: Term, envelope: AnyEnvelope) -> Reply:
    """Testing: have an agent kill, freeze or slow a worker."""
    body = envelope.body
    assert isinstance(body, RequestFault)
    async with term.lock(envelope.job), term.transaction() as work:
        if (known := await _known(work, envelope)) is not None:
            return known
        situation = await load(work.connection, envelope.job)
        if situation is None or situation.job.state is not JobState.RUNNING:
            return refused(_not_running(envelope.job, situation))
        if body.rank not in situation.alive:
            return refused(f"rank {body.rank} is not alive; alive: {ranks_text(situation.alive)}")
        if body.fault == "slow" and not situation.spec.clock.virtual:
            return refused("a slow device needs a job with clock.virtual = true")
        device = situation.of_rank[body.rank]
        order = command.InflictFault(
            node=device.node,
            token=term.token,
            agent_incarnation=device.incarnation,
            rank=body.rank,
            fault=body.fault,
            factor=body.factor,
            for_s=body.for_s,
        )
        envelope_out = term.envelope(
            order, job=envelope.job, epoch=situation.newest_epoch, correlation_id=envelope.message_id
        )
        await work.send(envelope_out, detail=device.node)
        return await _accept(term, work, envelope, Reply(accepted=True))


async def request_restart(term: Term, envelope: AnyEnvelope) -> Reply:
    """Start the worker of a lost rank again; it joins at a planned change."""
    body = envelope.body
    assert isinstance(body, RequestRestart)
    async with term.lock(envelope.job), term.transaction() as work:
        if (known := await _known(work, envelope)) is not None:
            return known
        situation = await load(work.connection, envelope.job)
        if situation is None or situation.job.state is not JobState.RUNNING:
            return refused(_not_running(envelope.job, situation))
        reason = await returns.request(term, work, situation, body.rank)
        return refused(reason) if reason else await _accept(term, work, envelope, Reply(accepted=True))


async def request_stop(term: Term, envelope: AnyEnvelope) -> Reply:
    """End a job that has not ended."""
    body = envelope.body
    assert isinstance(body, RequestStop)
    async with term.lock(envelope.job), term.transaction() as work:
        if (known := await _known(work, envelope)) is not None:
            return known
        situation = await load(work.connection, envelope.job)
        if situation is None or situation.job.state.ended:
            return refused(_not_running(envelope.job, situation))
        await endings.fail(term, work, situation, f"stopped by {body.reason}", state=JobState.STOPPED)
        return await _accept(term, work, envelope, Reply(accepted=True))


async def _known(work: UnitOfWork, envelope: AnyEnvelope) -> Reply | None:
    """The answer that this very request was given already."""
    raw = await work.reply_of(envelope.message_id)
    body = decode(raw).body if raw is not None else None
    return body if isinstance(body, Reply) else None


async def _accept(term: Term, work: UnitOfWork, envelope: AnyEnvelope, reply: Reply) -> Reply:
    await work.claim(envelope.message_id)
    await work.keep_reply(envelope.message_id, _wrap(term, envelope, reply))
    return reply


def _wrap(term: Term, envelope: AnyEnvelope, reply: Reply) -> AnyEnvelope:
    return term.envelope(reply, job=envelope.job, correlation_id=envelope.message_id)


VERBS: dict[str, Answer] = {
    "SubmitJob": submit_job,
    "RequestPlan": request_plan,
    "RequestFault": request_fault,
    "RequestRestart": request_restart,
    "RequestStop": request_stop,
}


def responder(term: Term, answer: Answer) -> Responder:
    """Wrap an answer in its envelope; what goes wrong in the database is an answer, too."""

    async def respond(envelope: AnyEnvelope) -> AnyEnvelope:
        try:
            reply = await answer(term, envelope)
        except LeadershipLost:
            term.deposed.set()
            reply = Reply(accepted=False, reason="this scheduler is not the leader any more; ask again", temporary=True)
        except StoreUnavailable as error:
            reason = f"the database is not available: {error}"
            reply = Reply(accepted=False, reason=reason[:4096], temporary=True)
        return _wrap(term, envelope, reply)

    return respond

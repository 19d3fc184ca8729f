"""What operators and tools ask for. One answer per message id; `accepted` only after the commit."""

from __future__ import annotations

from resihp_bus import Responder
from resihp_messages import AnyEnvelope, command
from resihp_messages.request import Reply, RequestFault, RequestPlan, RequestRestart, RequestStop, SubmitJob
from resihp_plan import InvalidPlan, InvalidProgram, ParallelPlan
from resihp_scheduler import changes, endings, governing, pricing, returns
from resihp_scheduler.asked import Answer, Asked, about_job, keep, known_reply, not_running, refused, wrap
from resihp_scheduler.changes import Cause
from resihp_scheduler.planning import Choice, JobPlanning, NoPlan, in_thread
from resihp_scheduler.situation import Situation, load, ranks_text
from resihp_scheduler.submission import submit
from resihp_scheduler.term import Term
from resihp_scheduler.validating import validate_devices
from resihp_store import JobState, LeadershipLost, StoreUnavailable, decisions


async def submit_job(term: Term, envelope: AnyEnvelope) -> Reply:
    body = envelope.body
    assert isinstance(body, SubmitJob)
    async with term.transaction() as work:
        if (known := await known_reply(work, envelope)) is not None:
            return known
        reason = await submit(term, work, envelope, body.spec)
        return refused(reason) if reason else await keep(term, work, envelope, Reply(accepted=True))


async def request_plan(term: Term, envelope: AnyEnvelope) -> Reply:
    """Switch a healthy job to the operator's plan, live. One change at a time."""
    body = envelope.body
    assert isinstance(body, RequestPlan)
    received_s = term.clock.monotonic()
    async with term.lock(envelope.job):
        async with term.store.read() as connection:
            situation = await load(connection, envelope.job)
            control = await decisions.control(connection, envelope.job)
        if situation is None or situation.job.state is not JobState.RUNNING:
            return refused(not_running(envelope.job, situation))
        if situation.spec.attached is not None:
            return refused(f"job {envelope.job!r} was launched by somebody else: its layout is not ours to change")
        planning = JobPlanning(situation.spec, pricing.calibration_of(control))
        choice = await _choose(term, situation, planning, body)
        async with term.transaction() as work:
            if (known := await known_reply(work, envelope)) is not None:
                return known
            if isinstance(choice, NoPlan):
                return Reply(accepted=False, reason=choice.reason[:4096], temporary=situation.open is not None)
            plan_s = term.clock.monotonic() - received_s
            cause = Cause("planned", body.reason, correlation_id=envelope.message_id, plan_s=plan_s)
            identifier = await changes.issue(term, work, situation, choice, cause)
            return await keep(term, work, envelope, Reply(accepted=True, reconfiguration_id=identifier))


async def _choose(term: Term, situation: Situation, planning: JobPlanning, body: RequestPlan) -> Choice | NoPlan:
    if situation.open is not None:
        change = situation.open
        return NoPlan(f"a {change.mode} change to epoch {change.new_epoch} is under way; try again after it")
    try:
        wanted = ParallelPlan.from_dict({"epoch": 0, **body.plan})
        return await in_thread(lambda: planning.requested(situation, wanted), term.settings.plan_deadline_s)
    except (InvalidPlan, InvalidProgram) as error:
        return NoPlan(f"invalid plan: {error}")


async def inflict_fault(asked: Asked) -> Reply:
    """Testing: have an agent kill, freeze or slow a worker, or corrupt its state."""
    body, situation, term = asked.envelope.body, asked.situation, asked.term
    assert isinstance(body, RequestFault)
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
    sent = term.envelope(
        order, job=situation.name, epoch=situation.newest_epoch, correlation_id=asked.envelope.message_id
    )
    await asked.work.send(sent, detail=device.node)
    return Reply(accepted=True)


async def restart_worker(asked: Asked) -> Reply:
    """Start the worker of a lost rank again; it joins at a planned change."""
    body = asked.envelope.body
    assert isinstance(body, RequestRestart)
    reason = await returns.request(asked.term, asked.work, asked.situation, body.rank)
    return refused(reason) if reason else Reply(accepted=True)


async def stop_job(asked: Asked) -> Reply:
    """End a job that has not ended."""
    body = asked.envelope.body
    assert isinstance(body, RequestStop)
    text = f"stopped by {body.reason}"
    await endings.fail(asked.term, asked.work, asked.situation, text, state=JobState.STOPPED)
    return Reply(accepted=True)


VERBS: dict[str, Answer] = {
    "SubmitJob": submit_job,
    "RequestPlan": request_plan,
    "RequestFault": about_job(inflict_fault),
    "RequestRestart": about_job(restart_worker),
    "RequestValidation": about_job(validate_devices),
    "RequestStop": about_job(stop_job, until_ended=True),
    "RequestMode": about_job(governing.set_mode, until_ended=True),
    "RequestHold": about_job(governing.set_hold, until_ended=True),
    "RequestRuling": about_job(governing.rule),
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
        return wrap(term, envelope, reply)

    return respond

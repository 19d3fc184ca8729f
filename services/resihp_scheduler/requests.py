"""What operators and tools ask for. One answer per message id; `accepted` only after the commit."""

from __future__ import annotations

from resihp_bus import Responder
from resihp_messages import AnyEnvelope
from resihp_messages.request import Reply, RequestRestart, RequestStop, SubmitJob
from resihp_scheduler import endings, governing, operated, returns
from resihp_scheduler.asked import Answer, Asked, about_job, keep, known_reply, refused, wrap
from resihp_scheduler.injecting import inflict_fault
from resihp_scheduler.steering import steer
from resihp_scheduler.submission import submit
from resihp_scheduler.term import Term
from resihp_scheduler.validating import validate_devices
from resihp_store import JobState, LeadershipLost, StoreUnavailable


async def submit_job(term: Term, envelope: AnyEnvelope) -> Reply:
    body = envelope.body
    assert isinstance(body, SubmitJob)
    async with term.transaction() as work:
        if (known := await known_reply(work, envelope)) is not None:
            return known
        reason = await submit(term, work, envelope, body.spec)
        return refused(reason) if reason else await keep(term, work, envelope, Reply(accepted=True))


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
    "RequestPlan": steer(operated.choose_plan),
    "RequestEvict": steer(operated.choose_eviction),
    "RequestUndo": steer(operated.choose_undo),
    "RequestReadmit": about_job(governing.readmit),
    "RequestThreshold": about_job(governing.set_threshold, until_ended=True),
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

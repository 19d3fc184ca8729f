"""The frame of a request about one job: answered once per message id, under the job's lock, in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from resihp_messages import AnyEnvelope, decode
from resihp_messages.request import Reply
from resihp_scheduler.situation import Situation, load
from resihp_scheduler.term import Term
from resihp_store import JobState, UnitOfWork

Answer = Callable[[Term, AnyEnvelope], Awaitable[Reply]]


@dataclass(frozen=True)
class Asked:
    """A request about a job that is in the right state."""

    term: Term
    work: UnitOfWork
    situation: Situation
    envelope: AnyEnvelope


def refused(reason: str) -> Reply:
    return Reply(accepted=False, reason=reason[:4096])


def not_running(job: str, situation: Situation | None) -> str:
    return f"there is no job {job!r}" if situation is None else f"job {job!r} is {situation.job.state}, not running"


def about_job(handle: Callable[[Asked], Awaitable[Reply]], *, until_ended: bool = False) -> Answer:
    """Frame `handle`: known ids get their old answer, jobs that do not run (or `until_ended`: have ended) a refusal;
    an accepted answer is kept in the same transaction, and the job is thought about anew."""

    async def answer(term: Term, envelope: AnyEnvelope) -> Reply:
        async with term.lock(envelope.job), term.transaction() as work:
            if (known := await known_reply(work, envelope)) is not None:
                return known
            situation = await load(work.connection, envelope.job)
            fits = situation is not None and (
                not situation.job.state.ended if until_ended else situation.job.state is JobState.RUNNING
            )
            if situation is None or not fits:
                return refused(not_running(envelope.job, situation))
            reply = await handle(Asked(term, work, situation, envelope))
            if reply.accepted:
                await keep(term, work, envelope, reply)
        term.wake(envelope.job)
        return reply

    return answer


async def known_reply(work: UnitOfWork, envelope: AnyEnvelope) -> Reply | None:
    """The answer that this very request was given already."""
    raw = await work.reply_of(envelope.message_id)
    body = decode(raw).body if raw is not None else None
    return body if isinstance(body, Reply) else None


async def keep(term: Term, work: UnitOfWork, envelope: AnyEnvelope, reply: Reply) -> Reply:
    """Remember the answer to an accepted request."""
    await work.claim(envelope.message_id)
    await work.keep_reply(envelope.message_id, wrap(term, envelope, reply))
    return reply


def wrap(term: Term, envelope: AnyEnvelope, reply: Reply) -> AnyEnvelope:
    return term.envelope(reply, job=envelope.job, correlation_id=envelope.message_id)

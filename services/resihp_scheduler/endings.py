"""How jobs end: finished, failed, stopped. What is open is closed with them, and their slots go to waiting jobs."""

from __future__ import annotations

from collections.abc import Iterable

from resihp_messages import AnyEnvelope, Body, command, event
from resihp_scheduler import changes
from resihp_scheduler.situation import Situation
from resihp_scheduler.submission import place_waiting
from resihp_scheduler.term import Term
from resihp_store import DeviceRecord, JobState, Json, UnitOfWork, queries


async def finish(term: Term, work: UnitOfWork, situation: Situation, results: Iterable[Json]) -> None:
    """Every rank that is left has committed the last iteration. `results`: `WorkerFinished` bodies."""
    told = list(results)
    # All ranks count the same votes; a rank that missed one shows it as a smaller total, not as a lost sample.
    fullest = max(told, key=lambda r: (r["samples_expected"], r["samples_once"]))
    committed = max(r["committed"] for r in told)
    loss = next((r["final_loss"] for r in told if r["final_loss"] is not None), None)
    counts = {"samples_expected": fullest["samples_expected"], "samples_once": fullest["samples_once"]}
    await work.set_committed(situation.name, committed)
    await work.set_job(situation.name, JobState.FINISHED, **counts, final_loss=loss)
    iterations = situation.spec.iterations if situation.spec.attached is None else committed  # nobody knew how many
    body = event.JobFinished(iterations=iterations, committed=committed, final_loss=loss, **counts)
    await _stop(term, work, situation, situation.returning, "the job finished")
    await _close_all(term, work, situation, "the job finished")
    await changes.publish(term, work, body, job=situation.name, epoch=situation.newest_epoch)
    await place_waiting(term, work)


async def fail(
    term: Term, work: UnitOfWork, situation: Situation, reason: str, *, state: JobState = JobState.FAILED
) -> None:
    """End the job now: its workers are stopped, what it has written so far is kept."""
    await work.set_job(situation.name, state, reason=reason)
    await _close_all(term, work, situation, reason)
    await _stop(term, work, situation, situation.alive | situation.returning, reason)
    failed = event.JobFailed(reason=reason[:4096])
    await changes.publish(term, work, failed, job=situation.name, epoch=situation.newest_epoch)
    await place_waiting(term, work)


async def _stop(term: Term, work: UnitOfWork, situation: Situation, ranks: Iterable[int], reason: str) -> None:
    for node, devices in situation.nodes_of(ranks).items():
        stop = command.StopJob(
            node=node, token=term.token, agent_incarnation=devices[0].incarnation, reason=reason[:4096]
        )
        await work.send(_to_node(term, situation, stop), detail=node)


async def finish_rest(term: Term, work: UnitOfWork, situation: Situation, ranks: Iterable[int]) -> None:
    """Somebody has passed the last barrier, so the last iteration is committed everywhere: the others may leave."""
    for node, devices in situation.nodes_of(ranks).items():
        await work.send(_to_node(term, situation, _finish_now(term, devices[0])), detail=node)


def _finish_now(term: Term, device: DeviceRecord) -> command.FinishJob:
    return command.FinishJob(node=device.node, token=term.token, agent_incarnation=device.incarnation)


def _to_node(term: Term, situation: Situation, body: Body) -> AnyEnvelope:
    return term.envelope(body, job=situation.name, epoch=situation.newest_epoch)


async def _close_all(term: Term, work: UnitOfWork, situation: Situation, reason: str) -> None:
    term.meter.forget(situation.name)
    term.scores.watch(situation.name, {})
    if situation.open is not None:
        await changes.reject(term, work, situation.open, reason)
    for incident in await queries.incidents(work.connection, job_name=situation.name, only_open=True):
        await work.close_incident(incident.id, reason)

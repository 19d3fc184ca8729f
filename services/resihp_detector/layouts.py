"""Which plan an epoch of a job runs: read from the command stream when a report names an epoch that is new."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from resihp_bus.port import Bus
from resihp_messages import AnyEnvelope, JobSpec, Kind, command
from resihp_plan import ModelSpec, ParallelPlan
from resihp_plan.plan import InvalidPlan

log = structlog.get_logger(__name__)

_GAP_S = 2.0
"""What is stored last may have expired or be malformed: then it never comes."""
_KEPT_PER_JOB = 16


@dataclass(frozen=True)
class Epoch:
    """One epoch of one run of a job."""

    job: str
    number: int
    reconfiguration_id: str
    plan: ParallelPlan
    model: ModelSpec
    is_first: bool
    """The plan with which the run began."""


class Layouts:
    """Plans and models of jobs, as far as they were asked for."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._position = 0
        self._models: dict[str, ModelSpec] = {}
        self._known: dict[str, dict[str, Epoch]] = {}

    async def find(self, job: str, number: int, reconfiguration_id: str) -> Epoch | None:
        """The epoch of a report. None if its plan is in no stored command. Raises `BusUnavailable`.

        Commands are stored before any rank can run their plan, so what is not there now never comes, unless the server
        was too slow to say it.
        """
        found = self._look(job, number, reconfiguration_id)
        if found is None:
            await self._read()
            found = self._look(job, number, reconfiguration_id)
        return found

    def _look(self, job: str, number: int, reconfiguration_id: str) -> Epoch | None:
        known = self._known.get(job, {})
        if reconfiguration_id:
            return known.get(reconfiguration_id)
        # the report of an agent that does not say
        return next((e for e in reversed(known.values()) if e.number == number), None)

    async def _read(self) -> None:
        """Take in what has been stored since the last time."""
        last = await self._bus.last_sequence(Kind.COMMAND)
        if last <= self._position:
            if last == self._position:
                return
            self._position = 0  # the stream was made anew
        async with contextlib.aclosing(self._bus.replay(Kind.COMMAND, after_sequence=self._position)) as commands:
            while self._position < last:
                try:
                    stored = await asyncio.wait_for(anext(commands), _GAP_S)
                except TimeoutError:
                    return  # a server that is slow, perhaps: the next time goes on here
                self._take(stored.envelope)
                self._position = stored.sequence

    def _take(self, envelope: AnyEnvelope) -> None:
        body = envelope.body
        if isinstance(body, command.StartWorkers):
            self._models[envelope.job] = model_of(body.spec)
        elif isinstance(body, command.ApplyPlan):
            self._take_plan(envelope, body, is_first=body.mode == "initial")
        elif isinstance(body, command.WatchWorkers):
            self._models[envelope.job] = model_of(body.spec)
            self._take_plan(envelope, body, is_first=True)  # each start of the job counts its iterations anew

    def _take_plan(
        self, envelope: AnyEnvelope, body: command.ApplyPlan | command.WatchWorkers, *, is_first: bool
    ) -> None:
        known = self._known.setdefault(envelope.job, {})
        if body.reconfiguration_id in known or envelope.job not in self._models:
            return
        try:
            plan = ParallelPlan.from_dict(body.plan)
        except InvalidPlan as error:
            log.warning("plan_unreadable", job=envelope.job, epoch=envelope.epoch, error=str(error))
            return
        known[body.reconfiguration_id] = Epoch(
            envelope.job,
            envelope.epoch,
            body.reconfiguration_id,
            plan,
            self._models[envelope.job],
            is_first,
        )
        while len(known) > _KEPT_PER_JOB:
            del known[next(iter(known))]


def model_of(spec: JobSpec) -> ModelSpec:
    """The model as the cost formula sees it."""
    return ModelSpec(**spec.model.model_dump())

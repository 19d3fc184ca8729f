"""What the scheduler weighed, and what it may do on its own: records, reads, writes of `decisions` and `controls`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from resihp_store import tables as t
from resihp_store.records import Json
from resihp_store.unit_of_work import UnitOfWork


class DecisionMode(StrEnum):
    """What the scheduler may do on its own about what can wait. Losses are acted on in every mode."""

    ACT = "act"
    ADVISE = "advise"
    OFF = "off"


class DecisionOutcome(StrEnum):
    """What became of a decision."""

    OPEN = "open"
    """Advice that nobody has ruled on, or a wait that is not over."""
    ACTED = "acted"
    APPROVED = "approved"
    VETOED = "vetoed"
    SUPERSEDED = "superseded"
    SETTLED = "settled"
    """To stay needs no action."""


@dataclass(frozen=True)
class ControlRecord:
    """How a job is governed."""

    job: str
    mode: DecisionMode = DecisionMode.ACT
    is_held: bool = False
    held_until: datetime | None = None
    """None while held: until it is lifted."""
    breaker: str = ""
    """Why automatic changes stopped; empty: they did not."""
    calibration: Json | None = None
    """Constants of the cost model measured on the job's healthy iterations."""
    evicted: frozenset[int] = frozenset()
    """Ranks that are not to be used until they are readmitted."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Those that an operator changed, by name."""

    def holds(self, now: datetime) -> bool:
        """Whether changes that can wait are on hold."""
        return self.is_held and (self.held_until is None or now < self.held_until)


@dataclass(frozen=True)
class DecisionRecord:
    """One question that was weighed, with the answer and the reasons."""

    id: str
    job: str
    incident_id: str | None
    reconfiguration_id: str | None
    """The change that followed; its record holds the throughput that was achieved."""
    trigger: str
    question: Json
    """`speeds` (rank -> p), `alive`, `old_epoch`."""
    key: str
    """Equal for equal questions: what was vetoed is not proposed again."""
    action: str
    """act, advise, wait, stay; repair: the answer to a loss, which cannot wait."""
    outcome: DecisionOutcome
    reason: str
    difference: str
    plan: Json | None
    """The best plan, also if it was not taken."""
    alternatives: tuple[Json, ...]
    predicted_tokens_per_s: float | None
    stay_tokens_per_s: float | None
    bound_tokens_per_s: float | None
    planning_s: float
    again_at: datetime | None
    note: str
    """Who ruled, or what overtook it."""
    created_at: datetime
    closed_at: datetime | None


async def decisions(
    connection: AsyncConnection,
    job: str,
    *,
    outcome: DecisionOutcome | None = None,
    newest_first: bool = False,
    limit: int = 1000,
) -> tuple[DecisionRecord, ...]:
    """Decisions of a job, oldest first unless asked otherwise."""
    d = t.decisions.c
    query = select(t.decisions).where(d.job == job).limit(limit)
    if outcome is not None:
        query = query.where(d.outcome == str(outcome))
    order = (d.created_at.desc(), d.id.desc()) if newest_first else (d.created_at, d.id)
    return tuple(_decision(dict(row._mapping)) for row in await connection.execute(query.order_by(*order)))


def _decision(values: Mapping[str, Any]) -> DecisionRecord:
    return DecisionRecord(
        **{
            **values,
            "outcome": DecisionOutcome(values["outcome"]),
            "alternatives": tuple(values["alternatives"]),
        }
    )


async def control(connection: AsyncConnection, job: str) -> ControlRecord:
    """How the job is governed; the defaults if nobody has said anything."""
    row = (await connection.execute(select(t.controls).where(t.controls.c.job == job))).one_or_none()
    if row is None:
        return ControlRecord(job)
    return ControlRecord(
        **{
            **row._mapping,
            "mode": DecisionMode(row.mode),
            "evicted": frozenset(row.evicted or ()),
            "thresholds": dict(row.thresholds or {}),
        }
    )


async def put_control(work: UnitOfWork, control: ControlRecord) -> None:
    values = asdict(control) | {"mode": str(control.mode), "evicted": sorted(control.evicted)}
    statement = work.upsert(t.controls).values(**values)
    await work.connection.execute(statement.on_conflict_do_update(index_elements=["job"], set_=values))


async def add_decision(work: UnitOfWork, decision: DecisionRecord) -> None:
    values = asdict(decision) | {"outcome": str(decision.outcome), "alternatives": list(decision.alternatives)}
    await work.connection.execute(t.decisions.insert().values(**values))


async def close_decision(
    work: UnitOfWork,
    decision_id: str,
    outcome: DecisionOutcome,
    note: str = "",
    *,
    reconfiguration_id: str | None = None,
) -> None:
    """End an open decision; a closed one stays as it is."""
    values: dict[str, Any] = {"outcome": str(outcome), "note": note, "closed_at": work.now}
    if reconfiguration_id is not None:
        values["reconfiguration_id"] = reconfiguration_id
    where = (t.decisions.c.id == decision_id, t.decisions.c.outcome == str(DecisionOutcome.OPEN))
    await work.connection.execute(update(t.decisions).where(*where).values(**values))


async def set_reconfiguration(work: UnitOfWork, decision_id: str, reconfiguration_id: str) -> None:
    """Note the change that an approved decision led to."""
    where = t.decisions.c.id == decision_id
    await work.connection.execute(update(t.decisions).where(where).values(reconfiguration_id=reconfiguration_id))


async def decision(connection: AsyncConnection, decision_id: str) -> DecisionRecord | None:
    row = (await connection.execute(select(t.decisions).where(t.decisions.c.id == decision_id))).one_or_none()
    return None if row is None else _decision(dict(row._mapping))

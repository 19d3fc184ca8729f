"""`resihp history`: every incident and change of plan, from the stored database."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from resihp_cli.commands.running import run as run_loop
from resihp_cli.commands.stored import database_url, reading
from resihp_cli.errors import CliError
from resihp_cli.view.export import as_csv, as_markdown
from resihp_cli.view.tables import PHASES, cause, clock, history_table
from resihp_gateway.models import EventView, IncidentView, PlanView, ReconfigurationView
from resihp_gateway.wording import describe, milliseconds, predicted_rate, signed, size, went_back
from resihp_store import queries

BESIDE = {"evaluations": "EvaluationFinished", "failed_checkpoints": "CheckpointFailed"}
"""What a job's history holds besides faults and changes: key of the JSON document -> event."""
MOST = 10_000
FORMATS = ("table", "json", "csv", "markdown")


def run_history(
    reconfiguration: str | None, *, form: str, job: str | None, run: str | None, database: str | None
) -> int:
    """`form` is one of `FORMATS`."""
    if form not in FORMATS:
        raise CliError(f"--format {form!r}: expected one of {', '.join(FORMATS)}")
    return run_loop(_history(database_url(database, run), reconfiguration, form, job))


async def _history(url: str, wanted: str | None, form: str, job: str | None) -> int:
    async with reading(url) as connection:
        incidents = [IncidentView.model_validate(r) for r in await queries.incidents(connection, job_name=job)]
        changes = [
            ReconfigurationView.model_validate(r) for r in await queries.reconfigurations(connection, job_name=job)
        ]
        jobs = [job] if job else [j.job for j in await queries.jobs(connection)]
        beside = {
            what: [e for j in jobs for e in await queries.events(connection, job_name=j, name=name, limit=MOST)]
            for what, name in BESIDE.items()
        }
        plans = {(j, p.epoch): PlanView.model_validate(p) for j in jobs for p in await queries.plans(connection, j)}
    if wanted is not None:
        changes = [r for r in changes if r.id.startswith(wanted)]
        if len(changes) != 1:
            raise CliError(f"{len(changes)} changes begin with {wanted!r}; see `resihp history`")
        kept = {r.incident_id for r in changes}
        incidents = [i for i in incidents if i.id in kept]
    if form == "json":
        document = _document(incidents, changes, plans)
        for what, found in beside.items():
            document[what] = [{"job": e.job, "at": e.occurred_at.isoformat(), **e.body} for e in found]
        print(json.dumps(document, indent=2))
        return 0
    if form != "table":
        print((as_csv if form == "csv" else as_markdown)(changes, incidents), end="")
        return 0
    console = Console(highlight=False)
    if not changes and not incidents:
        console.print("nothing happened: no incident, no change of plan")
    elif wanted is not None:
        _print_one(console, changes[0], incidents)
    else:
        console.print(history_table(changes, incidents, console.width))
        _print_open(console, changes, incidents)
    if wanted is None:
        for event in sorted((e for found in beside.values() for e in found), key=lambda e: e.sequence):
            console.print(f"{clock(event.occurred_at)}  {describe(EventView.model_validate(event))}")
    return 0


def _document(
    incidents: list[IncidentView], changes: list[ReconfigurationView], plans: dict[tuple[str, int], PlanView]
) -> dict[str, Any]:
    """Each change with its incident and both plans in full, so that one object tells the whole story."""
    by_id = {i.id: i.model_dump(mode="json") for i in incidents}

    def plan(job: str, epoch: int) -> Any:
        found = plans.get((job, epoch))
        return found.model_dump(mode="json") if found else None

    return {
        "incidents": list(by_id.values()),
        "reconfigurations": [
            {
                **r.model_dump(mode="json"),
                "incident": by_id.get(r.incident_id or ""),
                "old_plan": plan(r.job, r.old_epoch),
                "new_plan": plan(r.job, r.new_epoch),
            }
            for r in changes
        ],
    }


def _print_open(console: Console, changes: list[ReconfigurationView], incidents: list[IncidentView]) -> None:
    answered = {r.incident_id for r in changes}
    for incident in incidents:
        if incident.id not in answered:
            console.print(f"{clock(incident.opened_at)}  {cause(incident)}: no change of plan followed")


def _print_one(console: Console, r: ReconfigurationView, incidents: list[IncidentView]) -> None:
    console.print(f"[bold]{r.id}[/]  {r.mode}, {r.status}, epoch {r.old_epoch} -> {r.new_epoch}")
    for incident in incidents:
        console.print(f"cause     {cause(incident)} on {incident.node}")
        for key, value in incident.evidence.items():
            console.print(f"          {key} = {value}", style="dim")
    console.print(f"reason    {r.reason}")
    console.print(f"change    {r.difference or '-'}")
    console.print(f"plans     {r.old_digest[:16] or '-'} -> {r.new_digest[:16]}")
    for phase in PHASES:
        console.print(f"{phase:<9} {milliseconds(r.phases_s.get(phase))}")
    console.print(f"moved     {size(r.bytes_moved)}")
    if r.state_source != "live":
        console.print(f"went back {went_back(r.lost_iterations, r.state_source)}")
    if r.predicted_tokens_per_s is not None:
        error = f" ({signed(r.prediction_error, 0)})" if r.prediction_error is not None else ""
        achieved = f"{r.achieved_tokens_per_s:,.0f}" if r.achieved_tokens_per_s else "-"
        console.print(f"tokens/s  predicted {predicted_rate(r, '')}, achieved {achieved}{error}")
    for name, ok in r.proof.items():
        console.print(f"proof     {name}: {'holds' if ok else 'FAILED'}")
    alternatives = r.alternatives if isinstance(r.alternatives, list) else []
    for alternative in alternatives:
        if isinstance(alternative, dict):
            console.print(f"rejected  {alternative.get('name')}: {alternative.get('reason')}", style="dim")

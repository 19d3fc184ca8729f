"""`resihp report ID`: one change of plan as a page for a post-mortem, HTML (one file) or Markdown (pictures beside)."""

from __future__ import annotations

from pathlib import Path

from resihp_cli.commands.running import run as run_loop
from resihp_cli.commands.stored import database_url, reading
from resihp_cli.errors import CliError
from resihp_cli.view.page import Page, html_page, markdown_page
from resihp_gateway import detail
from resihp_gateway.drawing import phases_svg, plans_svg
from resihp_gateway.models import JobView, ReconfigurationDetail
from resihp_plan.plan import InvalidPlan, ParallelPlan
from resihp_store import queries

MARKDOWN = (".md", ".markdown")


def run_report(wanted: str, *, out: Path | None, run: str | None, database: str | None) -> int:
    """Raises `CliError` for an unknown id or a file that cannot be written."""
    return run_loop(_report(database_url(database, run), wanted, out))


async def _report(url: str, wanted: str, out: Path | None) -> int:
    async with reading(url) as connection:
        found = [r for r in await queries.reconfigurations(connection) if r.id.startswith(wanted)]
        if len(found) != 1:
            raise CliError(f"{len(found)} changes begin with {wanted!r}; see `resihp history`")
        change = await detail.load(connection, found[0])
        job = await queries.job(connection, change.job)
        iterations = await queries.iterations(connection, change.job, epoch=change.new_epoch, limit=1)
    assert job is not None
    page = Page(change, JobView.model_validate(job), iterations[0].iteration if iterations else None)
    path = out or Path(f"report-{change.id[:8]}.html")
    plans, phases = pictures(change)
    try:
        if path.suffix in MARKDOWN:
            names = []
            for name, picture in (("plans", plans), ("phases", phases)):
                if picture:
                    file = path.with_name(f"{path.stem}-{name}.svg")
                    file.write_text(picture, encoding="utf-8")
                    names.append((name, file.name))
            path.write_text(markdown_page(page, names), encoding="utf-8")
        else:
            path.write_text(html_page(page, plans, phases), encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    print(path)
    return 0


def pictures(change: ReconfigurationDetail) -> tuple[str, str]:
    """(plans, phases) as SVG; empty where there is nothing to draw."""
    plans = ""
    if change.new_plan is not None:
        try:
            old = ParallelPlan.from_dict(change.old_plan.plan) if change.old_plan else None
            plans = plans_svg(old, ParallelPlan.from_dict(change.new_plan.plan), change.difference)
        except InvalidPlan:
            plans = ""
    return plans, phases_svg(change.phases_s) if any(change.phases_s.values()) else ""

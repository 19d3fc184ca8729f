"""The commands of operators beside `govern_app`: `resihp top`, `report`, `notify test`, `token ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

notify_app = typer.Typer(no_args_is_help=True, help="Webhooks: who is told what (docs/webhooks.md).")
token_app = typer.Typer(no_args_is_help=True, help="Bearer tokens of the gateway (docs/security.md).")
TokenFile = Annotated[
    Path, typer.Option("--file", help="The gateway's RESIHP_GATEWAY_TOKENS_FILE.", envvar="RESIHP_GATEWAY_TOKENS_FILE")
]
DEFAULT_TOKENS = Path(".resihp/tokens.json")


def top(
    url: Annotated[str | None, typer.Option("--url", help="Gateway. Default: the newest local run.")] = None,
    job: Annotated[str | None, typer.Option("--job", help="Job. Default: the only (or newest) one.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
) -> None:
    """The dashboard in the terminal: cluster map, throughput against healthy and bound, incidents, changes."""
    from resihp_cli.commands.top import run_top

    raise typer.Exit(run_top(url=url, job=job, once=once))


def report(
    reconfiguration: Annotated[str, typer.Argument(metavar="ID", help="Of the change (its beginning is enough).")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.html|FILE.md", help="Default: report-ID.html", dir_okay=False)
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Run folder or its name. Default: the newest.")] = None,
    db: Annotated[str | None, typer.Option("--db", help="Database URL. Default: the newest run's.")] = None,
) -> None:
    """Write one change of plan as a page with pictures, for a post-mortem. Works after the run too."""
    from resihp_cli.commands.report import run_report

    raise typer.Exit(run_report(reconfiguration, out=out, run=run, database=db))


@notify_app.command("test", epilog="Example: resihp notify test --file webhooks.toml")
def notify_test(
    file: Annotated[
        Path, typer.Option("--file", help="The gateway's webhooks file.", envvar="RESIHP_GATEWAY_WEBHOOKS_FILE")
    ] = Path("webhooks.toml"),
    name: Annotated[str | None, typer.Option("--name", help="Only this webhook.")] = None,
) -> None:
    """Send a sample event to every webhook and say what each answered; exit code 1 if one did not take it."""
    from resihp_cli.commands.notify import run_test

    raise typer.Exit(run_test(file, name))


@token_app.command("create", epilog="Example: resihp token create alice --role operate")
def token_create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit trail.")],
    role: Annotated[str, typer.Option("--role", help="view, operate or admin.")] = "view",
    file: TokenFile = DEFAULT_TOKENS,
) -> None:
    """Make a token and print it: it cannot be seen again. Only its digest is kept."""
    from resihp_cli.commands.tokens import run_create

    raise typer.Exit(run_create(name, role, file))


@token_app.command("list", epilog="Example: resihp token list")
def token_list(file: TokenFile = DEFAULT_TOKENS) -> None:
    """Names, roles and dates."""
    from resihp_cli.commands.tokens import run_list

    raise typer.Exit(run_list(file))


@token_app.command("revoke", epilog="Example: resihp token revoke alice")
def token_revoke(name: Annotated[str, typer.Argument()], file: TokenFile = DEFAULT_TOKENS) -> None:
    """Make a token worthless, at once."""
    from resihp_cli.commands.tokens import run_revoke

    raise typer.Exit(run_revoke(name, file))


def register(app: typer.Typer) -> None:
    """Add the commands to the tree."""
    app.command(epilog="Example: resihp top --once")(top)
    app.command(epilog="Example: resihp report c02af31e --out incident.md")(report)
    app.add_typer(notify_app, name="notify")
    app.add_typer(token_app, name="token")

"""The commands `resihp keys ...`: keys and permissions of everybody on the message bus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Keys of everybody on the message bus (docs/security.md).")
Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder of keys.", envvar="RESIHP_BUS_KEYS")]
DEFAULT = Path("keys")


@app.command("init", epilog="Example: resihp keys init --agent n0 --agent n1")
def init(
    folder: Folder = DEFAULT,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NODE", help="A node whose agent gets a key; repeatable.")
    ] = None,
    reader: Annotated[
        list[str] | None,
        typer.Option("--reader", metavar="NAME", help="A program of yours that follows events; repeatable."),
    ] = None,
    rotate: Annotated[
        list[str] | None, typer.Option("--rotate", metavar="NAME", help="Replace this identity's key; repeatable.")
    ] = None,
    tls: Annotated[
        list[str] | None,
        typer.Option("--tls", metavar="HOST", help="Make a certificate for the server's name or address; repeatable."),
    ] = None,
    server_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where nats-server will see DIR/server.  [default: there]")
    ] = None,
    owner: Annotated[int | None, typer.Option(min=0, metavar="UID", help="User id that gets the seeds.")] = None,
) -> None:
    """Make a key for detector, scheduler, gateway, operator and each agent, and the server's permissions.

    Keys that exist stay as they are: run it again to add a node, or with --rotate to replace one.
    """
    from resihp_cli.commands.keys import run_init

    raise typer.Exit(
        run_init(
            folder,
            agents=agent or [],
            readers=reader or [],
            rotate=rotate or [],
            tls=tls or [],
            server_path=server_path,
            owner=owner,
        )
    )


@app.command("list", epilog="Example: resihp keys list")
def list_(folder: Folder = DEFAULT) -> None:
    """Names and public keys."""
    from resihp_cli.commands.keys import run_list

    raise typer.Exit(run_list(folder))


@app.command("remove", epilog="Example: resihp keys remove agent-n1")
def remove(
    name: Annotated[str, typer.Argument(help="An agent (agent-NODE) or reader.")], folder: Folder = DEFAULT
) -> None:
    """Take an agent's or reader's key out of the server's file; after a reload it opens nothing."""
    from resihp_cli.commands.keys import run_remove

    raise typer.Exit(run_remove(folder, name))


def register(root: typer.Typer) -> None:
    """Add the commands to the tree."""
    root.add_typer(app, name="keys")

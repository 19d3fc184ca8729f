"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="Gateway. Default: the newest local run.", metavar="URL")]
Job = Annotated[str | None, typer.Option("--job", help="Job. Default: the only (or newest) one.")]
Run = Annotated[str | None, typer.Option("--run", help="Run folder or its name. Default: the newest.")]
Db = Annotated[str | None, typer.Option("--db", help="Database URL. Default: the newest run's.", metavar="URL")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the outcome as JSON.", dir_okay=False)]
Agents = Annotated[int, typer.Option("--agents", min=1, max=64, help="Agents (nodes); the devices are dealt to them.")]
Bus = Annotated[str | None, typer.Option("--bus", help="Use this NATS server instead of an own one.", metavar="URL")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Gateway port; 0 takes a free one.")]
Headless = Annotated[bool, typer.Option("--headless", help="Plain progress lines instead of the live screen.")]
Verify = Annotated[bool, typer.Option("--verify", help="Compare with an undisturbed run at the end.")]
Keys = Annotated[bool, typer.Option("--keys", help="Every process gets a key and permissions of its own on the bus.")]

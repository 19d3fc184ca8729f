"""`resihp notify test`: one sample event to every webhook of a file."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_gateway.models import EventView
from resihp_gateway.webhooks.config import Webhook, load
from resihp_gateway.webhooks.notifier import Undelivered, deliver
from resihp_messages.ids import new_id


def run_test(file: Path, name: str | None) -> int:
    """0 if every receiver took it, 1 if not. Raises `CliError` for a wrong file or an unknown name."""
    try:
        hooks = load(file)
    except ValueError as error:
        raise CliError(str(error)) from error
    chosen = [hook for hook in hooks if name in (None, hook.name)]
    if not chosen:
        raise CliError(f"{file} has no webhook" + (f" named {name!r}" if name else ""))
    return run_loop(_test(chosen))


async def _test(hooks: list[Webhook]) -> int:
    failed = 0
    async with httpx.AsyncClient() as client:
        for hook in hooks:
            begun = time.monotonic()
            try:
                told = f"taken, status {await deliver(client, hook, sample(), int(time.time()))}"
            except Undelivered as error:
                failed += 1
                told = f"NOT taken: {error}"
            signed = "signed" if hook.key else "unsigned"
            print(f"{hook.name:<20} {hook.format}, {signed}: {told} ({(time.monotonic() - begun) * 1000:.0f} ms)")
    return 1 if failed else 0


def sample() -> EventView:
    """An event that says of itself that it is a test."""
    return EventView(
        sequence=0,
        message_id=new_id(),
        name="JobFailed",
        job="test",
        epoch=0,
        source="resihp-notify-test",
        occurred_at=datetime.now(UTC),
        body={"reason": "this is only a test of the webhook (resihp notify test)"},
    )

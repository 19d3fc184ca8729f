"""`resihp stop`, `evict`, `readmit`, `undo`, `threshold`, `control`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.console import Console, Group
from rich.table import Table

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_cli.view.tables import clock
from resihp_gateway.models import ControlView
from resihp_messages.thresholds import THRESHOLDS


def run_devices(
    action: Literal["evict", "readmit"], job: str, ranks: Sequence[int], *, url: str | None, reason: str
) -> int:
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    said = {"evict": "evicted; stands by", "readmit": "readmitted; a plan with it is weighed"}[action]
    return run_loop(_post(gateway_url(url), job, action, {"ranks": list(ranks), "reason": reason}, f"{who} {said}"))


def run_undo(job: str, *, url: str | None, reason: str) -> int:
    return run_loop(_post(gateway_url(url), job, "undo", {"reason": reason}, "goes back to the layout before"))


def run_stop(job: str, *, url: str | None, reason: str) -> int:
    return run_loop(_post(gateway_url(url), job, "stop", {"reason": reason}, "stops"))


def run_threshold(job: str, name: str, value: str, *, url: str | None, reason: str) -> int:
    if name not in THRESHOLDS:
        raise CliError(f"threshold {name!r}: choose from {', '.join(THRESHOLDS)}")
    try:
        number = None if value == "default" else float(value)
    except ValueError:
        raise CliError(f"{value!r} is neither a number nor `default`") from None
    body = {"name": name, "value": number, "reason": reason}
    return run_loop(_post(gateway_url(url), job, "threshold", body, f"{name} is {value}"))


async def _post(url: str, job: str, path: str, body: Mapping[str, object], said: str) -> int:
    async with GatewayClient(url) as client:
        answer = await client.act(job, path, body)
    change = f" (reconfiguration {answer.reconfiguration_id[:8]})" if answer.reconfiguration_id else ""
    print(f"{job}: {said}{change}")
    return 0


def run_control(job: str, *, url: str | None, as_json: bool) -> int:
    return run_loop(_control(gateway_url(url), job, as_json))


async def _control(url: str, job: str, as_json: bool) -> int:
    async with GatewayClient(url) as client:
        found = await client.control(job)
    if as_json:
        print(json.dumps(found.model_dump(mode="json"), indent=2))
    else:
        Console(highlight=False).print(control_text(job, found))
    return 0


def control_text(job: str, found: ControlView) -> Group:
    """For people."""
    until = f"until {clock(found.held_until)}" if found.held_until else "until `resihp resume`"
    lines = [f"{job}: mode {found.mode}"]
    if found.held:
        lines.append(f"held {until}: no change that can wait is made")
    if found.breaker:
        lines.append(f"breaker tripped: {found.breaker}")
    lines.append(f"evicted: {', '.join(map(str, found.evicted)) or 'none'}")
    if found.decision is not None:
        d = found.decision
        lines.append(f"waits for you: {d.id[:8]} {d.trigger}: {d.difference or d.reason}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("threshold", "value", "default", "meaning"):
        table.add_column(name)
    for t in found.thresholds:
        changed = "*" if t.value != t.default else ""
        table.add_row(t.name, f"{t.value:g}{changed}", f"{t.default:g}", t.meaning)
    return Group("\n".join(lines), "", table)

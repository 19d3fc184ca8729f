"""`resihp mode`, `approve`, `veto`, `pause`, `protect`, `resume`, `decisions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from rich.console import Console
from rich.table import Table

from resihp_cli.client import GatewayClient
from resihp_cli.commands.locate import gateway_url
from resihp_cli.commands.running import run as run_loop
from resihp_cli.errors import CliError
from resihp_gateway.decision_view import DecisionView

MODES = ("act", "advise", "off")


def run_mode(job: str, mode: str, *, url: str | None, reason: str) -> int:
    if mode not in MODES:
        raise CliError(f"mode {mode!r}: choose from {', '.join(MODES)}")
    return run_loop(_post(gateway_url(url), job, "mode", {"mode": mode, "reason": reason}, f"mode is {mode}"))


def run_ruling(
    ruling: Literal["approve", "veto"], job: str, decision: str | None, *, url: str | None, reason: str
) -> int:
    said = {"approve": "approved; it is weighed once more", "veto": "vetoed"}[ruling]
    body = {"decision_id": decision, "reason": reason}
    return run_loop(_post(gateway_url(url), job, ruling, body, said))


def run_hold(job: str, for_s: float | None, *, url: str | None, reason: str) -> int:
    said = "no change that can wait " + ("until `resihp resume`" if for_s is None else f"for {for_s:g} s")
    body = {"for_s": for_s, "reason": reason}
    return run_loop(_post(gateway_url(url), job, "hold", body, "goes on deciding" if for_s == 0.0 else said))


async def _post(url: str, job: str, path: str, body: Mapping[str, object], said: str) -> int:
    async with GatewayClient(url) as client:
        answer = await client.act(job, path, body)
    print(f"{job}: {answer.decision_id + ' ' if answer.decision_id else ''}{said}")
    return 0


def run_decisions(job: str, *, url: str | None, as_json: bool) -> int:
    return run_loop(_decisions(gateway_url(url), job, as_json))


async def _decisions(url: str, job: str, as_json: bool) -> int:
    async with GatewayClient(url) as client:
        found = await client.decisions(job)
    if as_json:
        print(json.dumps([d.model_dump(mode="json") for d in found], indent=2))
    else:
        Console(highlight=False).print(decision_table(found) if found else f"{job}: nothing was weighed yet")
    return 0


def decision_table(found: list[DecisionView]) -> Table:
    """Newest first."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in (
        "id",
        "trigger",
        "action",
        "outcome",
        "tokens/s: stay",
        "best",
        "bound",
        "achieved",
        "reason",
        "difference",
    ):
        table.add_column(name, overflow="fold")
    for d in found:
        rates = (d.stay_tokens_per_s, d.predicted_tokens_per_s, d.bound_tokens_per_s, d.achieved_tokens_per_s)
        numbers = ["-" if rate is None else f"{rate:.0f}" for rate in rates]
        table.add_row(d.id[:8], d.trigger, d.action, d.outcome, *numbers, d.reason, d.difference)
    return table

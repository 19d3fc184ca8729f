"""What an operator asks for, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Parameters = Mapping[str, Any]
NO_REASON = "operator"
"""The reason of requests that came without one."""


def asked_for(action: str, parameters: Parameters) -> str:
    """`mode advise`, `the eviction of rank 5`; the request's own name if it is a new one, or lacks a parameter."""
    try:
        return _WORDS[action](parameters)
    except (KeyError, TypeError):
        return action


def short(action: str) -> str:
    """`hold` for `RequestHold`."""
    return action.removeprefix("Request").lower() if action.startswith("Request") else action


def _hold(p: Parameters) -> str:
    if p["for_s"] == 0:
        return "the hold to be lifted"
    return "no change that can wait " + ("until that is lifted" if p["for_s"] is None else f"for {p['for_s']:g} s")


def _ranks(p: Parameters) -> str:
    ranks = ", ".join(map(str, p["ranks"]))
    return f"rank{'s' if len(p['ranks']) > 1 else ''} {ranks}"


def _fault(p: Parameters) -> str:
    return f"a fault of rank {p['rank']} for testing ({p['fault'].replace('_', ' ')})"


_WORDS: Mapping[str, Callable[[Parameters], str]] = {
    "SubmitJob": lambda _: "a job to be trained",
    "RequestStop": lambda _: "the job to stop",
    "RequestPlan": lambda _: "another plan",
    "RequestRestart": lambda p: f"a new worker of rank {p['rank']}",
    "RequestValidation": lambda p: "probes of " + (_ranks(p) if p["ranks"] else "all devices"),
    "RequestMode": lambda p: f"mode {p['mode']}",
    "RequestRuling": lambda p: {"approve": "approval", "veto": "veto"}[p["ruling"]] + " of what waits",
    "RequestHold": _hold,
    "RequestEvict": lambda p: f"the eviction of {_ranks(p)}",
    "RequestReadmit": lambda p: f"the return of {_ranks(p)}",
    "RequestUndo": lambda _: "the layout before",
    "RequestThreshold": lambda p: f"{p['name']} = {'its default' if p['value'] is None else format(p['value'], 'g')}",
    "RequestFault": _fault,
}

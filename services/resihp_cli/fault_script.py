"""Fault and switch scripts of the command line: `3@15`, `3@15:vote`, `5@30x0.5`, `plan.json@8`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resihp_cli.errors import CliError
from resihp_messages import FaultPoint, ScriptedFault

_FAULT = re.compile(r"(?P<rank>\d+)@(?P<iteration>\d+)(?::(?P<point>[a-z_]+))?")

_SLOW = re.compile(r"(?P<rank>\d+)@(?P<iteration>\d+)x(?P<factor>\d+(?:\.\d+)?|\.\d+)")


@dataclass(frozen=True)
class Switch:
    """Ask for the plan in `path` as soon as `iteration` iterations are committed."""

    path: Path
    iteration: int


@dataclass(frozen=True)
class Rejoin:
    """Start the lost `rank` again as soon as `iteration` iterations are committed."""

    rank: int
    iteration: int


@dataclass(frozen=True)
class NodeStep:
    """Kill a local agent with everything that it started, or start it again, after `iteration` iterations."""

    kind: Literal["kill", "start"]
    agent: int
    iteration: int


def parse_rejoin(text: str) -> Rejoin:
    """`RANK@ITERATION` -> rejoin. Raises `CliError`."""
    return Rejoin(*_number_at(text, "--rejoin", "RANK"))


def parse_node_step(kind: Literal["kill", "start"], text: str) -> NodeStep:
    """`AGENT@ITERATION` -> step. Raises `CliError`."""
    option = "--kill-agent" if kind == "kill" else "--rejoin-agent"
    return NodeStep(kind, *_number_at(text, option, "AGENT"))


def _number_at(text: str, option: str, what: str) -> tuple[int, int]:
    match = _FAULT.fullmatch(text.strip())
    if match is None or match["point"]:
        raise CliError(f"{option} {text!r}: expected {what}@ITERATION, for example 1@25")
    return int(match["rank"]), int(match["iteration"])


def parse_fault(kind: Literal["kill", "freeze"], text: str) -> ScriptedFault:
    """`RANK@ITERATION[:POINT]` -> fault. Raises `CliError` that names the form or the points.

    >>> parse_fault("kill", "3@15:vote").point
    <FaultPoint.VOTE: 'vote'>
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise CliError(f"--{kind} {text!r}: expected RANK@ITERATION[:POINT], for example 3@15 or 3@15:vote")
    points = [str(p) for p in FaultPoint]
    point = match["point"] or str(FaultPoint.COMPUTE)
    if point not in points:
        raise CliError(f"--{kind} {text!r}: unknown point {point!r}, choose from {', '.join(points)}")
    iteration = int(match["iteration"])
    if iteration < 1:
        raise CliError(f"--{kind} {text!r}: iterations are counted from 1")
    return ScriptedFault(kind=kind, rank=int(match["rank"]), iteration=iteration, point=FaultPoint(point))


def parse_slow(text: str) -> ScriptedFault:
    """`RANK@ITERATIONxSPEED` -> fault. Raises `CliError`.

    >>> parse_slow("5@30x0.5").factor
    0.5
    """
    match = _SLOW.fullmatch(text.strip())
    if match is None:
        raise CliError(f"--slow {text!r}: expected RANK@ITERATIONxSPEED, for example 5@30x0.5")
    factor, iteration = float(match["factor"]), int(match["iteration"])
    if not 0.0 < factor <= 1.0:
        raise CliError(f"--slow {text!r}: the speed is above 0 and at most 1")
    if iteration < 1:
        raise CliError(f"--slow {text!r}: iterations are counted from 1")
    return ScriptedFault(kind="slow", rank=int(match["rank"]), iteration=iteration, factor=factor)


def parse_switch(text: str) -> Switch:
    """`FILE@ITERATION` -> switch. Raises `CliError` for a wrong form or a missing file."""
    path, at, iteration = text.rpartition("@")
    if not at or not path or not iteration.isdigit():
        raise CliError(f"--switch {text!r}: expected FILE@ITERATION, for example plan.json@8")
    if not Path(path).is_file():
        raise CliError(f"--switch {text!r}: no such file: {path}")
    return Switch(Path(path), int(iteration))

"""`3@15:vote` and `plan.json@8`."""

from __future__ import annotations

from pathlib import Path

import pytest

from resihp_cli.errors import CliError
from resihp_cli.fault_script import (
    NodeStep,
    Rejoin,
    Switch,
    parse_fault,
    parse_node_step,
    parse_rejoin,
    parse_slow,
    parse_switch,
)
from resihp_messages import FaultPoint, ScriptedFault


@pytest.mark.parametrize("point", list(FaultPoint))
def test_every_point_can_be_named(point: FaultPoint) -> None:
    assert parse_fault("kill", f"3@15:{point}") == ScriptedFault(kind="kill", rank=3, iteration=15, point=point)


def test_default_point_and_spaces() -> None:
    assert parse_fault("freeze", " 0@1 ") == ScriptedFault(kind="freeze", rank=0, iteration=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "expected RANK@ITERATION"),
        ("3x5", "expected RANK@ITERATION"),
        ("-1@5", "expected RANK@ITERATION"),
        ("3@15:", "expected RANK@ITERATION"),
        ("3@15:backward", "compute, gradient, vote, optimizer"),
        ("3@0", "counted from 1"),
    ],
)
def test_wrong_faults_name_the_form(text: str, words: str) -> None:
    with pytest.raises(CliError, match=words) as error:
        parse_fault("kill", text)
    assert "--kill" in str(error.value)
    assert "\n" not in str(error.value)


def test_switch(tmp_path: Path) -> None:
    file = tmp_path / "a@b.json"
    file.write_text("{}")
    assert parse_switch(f"{file}@8") == Switch(file, 8)


@pytest.mark.parametrize(
    ("text", "words"), [("plan.json", "FILE@ITERATION"), ("none.json@3", "no such file"), ("@3", "FILE")]
)
def test_wrong_switches(text: str, words: str) -> None:
    with pytest.raises(CliError, match=words):
        parse_switch(text)


def test_ranks_and_agents_come_back() -> None:
    assert parse_rejoin("3@25") == Rejoin(3, 25)
    assert parse_node_step("kill", "1@15") == NodeStep("kill", 1, 15)
    assert parse_node_step("start", "1@25") == NodeStep("start", 1, 25)


@pytest.mark.parametrize("text", ["3", "@3", "3@15:vote", "a@1"])
def test_wrong_steps_name_their_option(text: str) -> None:
    with pytest.raises(CliError, match=r"--rejoin .*expected RANK@ITERATION"):
        parse_rejoin(text)
    with pytest.raises(CliError, match=r"--rejoin-agent .*expected AGENT@ITERATION"):
        parse_node_step("start", text)


def test_slow_scripts() -> None:
    fault = parse_slow("5@30x0.5")
    assert (fault.kind, fault.rank, fault.iteration, fault.factor, fault.for_s) == ("slow", 5, 30, 0.5, 0.0)
    assert parse_slow("0@1x.25").factor == 0.25


@pytest.mark.parametrize("text", ["5@30", "5x0.5", "5@0x0.5", "5@3x0", "5@3x1.5", "a@3x0.5", "5@3x0.5:vote"])
def test_bad_slow_scripts(text: str) -> None:
    with pytest.raises(CliError, match="--slow"):
        parse_slow(text)

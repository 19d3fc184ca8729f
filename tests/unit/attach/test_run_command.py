"""`resihp run`: what the command gets into its environment."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from resihp_attach import place, stuck
from resihp_cli.commands.run import Watching, default_name, environment, run_command
from resihp_cli.errors import CliError

WATCHING = Watching(Path("/run/a.sock"), "http://127.0.0.1:1")


def test_the_hooks_come_first_and_the_users_path_stays() -> None:
    env = environment("j", WATCHING, "pp=2,dp=2", 30.0, {"PYTHONPATH": "/theirs", "HOME": "/root"})
    site, theirs = env["PYTHONPATH"].split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").is_file()
    assert (theirs, env["HOME"]) == ("/theirs", "/root")
    found = place.read_place({**env, "RANK": "0", "WORLD_SIZE": "4"})
    assert (found.job, found.axes, found.hang_s) == ("j", {"pp": 2, "dp": 2}, 30.0)
    assert env[place.SOCKET] == "/run/a.sock"


def test_a_flight_recorder_of_the_users_own_stays() -> None:
    assert environment("j", WATCHING, "", 30.0, {stuck.BUFFER: "9999"})[stuck.BUFFER] == "9999"


@pytest.mark.parametrize("command", [["torchrun", "x.py"], ["./launch"], ["a b!"], ["x" * 200]])
def test_default_names_are_tokens(command: list[str]) -> None:
    name = default_name(command, datetime(2026, 1, 2, 3, 4, 5))
    assert place.job_name({place.JOB: name}) == name
    assert name.endswith("-0102-030405")


@pytest.mark.parametrize(("name", "axes", "text"), [("a b", "", "--name 'a b'"), (None, "dp=x", "--axes: axes 'dp=x'")])
def test_bad_arguments(name: str | None, axes: str, text: str) -> None:
    with pytest.raises(CliError, match=text):
        run_command(["true"], name=name, axes=axes, hang_s=1.0, port=0)

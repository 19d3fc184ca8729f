"""Run folders and the pointer to the newest one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from resihp_cli.errors import CliError
from resihp_cli.run_folder import RunInfo, create, find, home, publish_latest

NOW = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESIHP_HOME", str(tmp_path / "home"))


def info(name: str) -> RunInfo:
    return RunInfo(name, "http://127.0.0.1:1", "nats://127.0.0.1:2", "sqlite+aiosqlite:///x", 1, pids={"gateway": 7})


def test_two_runs_in_one_second_have_two_folders() -> None:
    first, second = create(NOW), create(NOW)
    assert (first.id, second.id) == ("20260102-030405", "20260102-030405-1")


def test_latest_is_the_last_published() -> None:
    with pytest.raises(CliError, match="no run found"):
        find()
    for folder in (create(NOW), create(NOW)):
        folder.write(info(folder.id))
        publish_latest(folder)
    assert find().id == "20260102-030405-1"
    assert find().read().pids == {"gateway": 7}
    assert find("20260102-030405").read().id == "20260102-030405"
    assert find(str(home() / "runs" / "20260102-030405")).id == "20260102-030405"
    with pytest.raises(CliError, match="no run 'other'"):
        find("other")


def test_broken_descriptions_are_told() -> None:
    folder = create(NOW)
    (folder.path / "run.json").write_text("{")
    publish_latest(folder)
    with pytest.raises(CliError, match="not JSON"):
        find().read()
    (folder.path / "run.json").write_text('{"id": "x"}')
    with pytest.raises(CliError, match="not a run description"):
        find().read()

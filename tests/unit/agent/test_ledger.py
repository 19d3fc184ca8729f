"""Fencing by leader token and plan epoch, across restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from resihp_agent.errors import StaleCommand
from resihp_agent.ledger import FencingLedger


def test_smaller_tokens_and_epochs_are_stale(tmp_path: Path) -> None:
    ledger = FencingLedger(tmp_path / "ledger.json")
    ledger.admit_token(3)
    ledger.admit_token(3)
    with pytest.raises(StaleCommand, match="token 2 is older than 3"):
        ledger.admit_token(2)
    ledger.admit_epoch("demo", 5)
    for epoch in (4, 5):
        with pytest.raises(StaleCommand, match="not newer than 5"):
            ledger.admit_epoch("demo", epoch)
    ledger.admit_epoch("other", 1)


def test_it_remembers(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.json"
    ledger = FencingLedger(path)
    ledger.admit_token(3)
    ledger.admit_epoch("demo", 5)
    ledger.save()
    again = FencingLedger(path)
    assert (again.token, again.epoch("demo"), again.epoch("other")) == (3, 5, 0)
    again.reset_epoch("demo")
    again.admit_epoch("demo", 1)
    again.save()
    assert FencingLedger(path).epoch("demo") == 1
    assert [p.name for p in path.parent.iterdir()] == ["ledger.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "x", "epochs": {}}', '{"token": 1, "epochs": [1]}'])
def test_a_broken_file_counts_as_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    assert FencingLedger(path).token == 0

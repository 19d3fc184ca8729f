"""Hooks after imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from resihp_attach.imports import AfterImport


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AfterImport]:
    (tmp_path / "attached_victim.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = AfterImport()
    sys.meta_path.insert(0, made)
    yield made
    sys.meta_path.remove(made)
    sys.modules.pop("attached_victim", None)


def double(module: ModuleType) -> None:
    vars(module)["value"] *= 2


def fail(module: ModuleType) -> None:
    raise RuntimeError("hook")


def test_a_hook_runs_after_the_import(finder: AfterImport) -> None:
    finder.call("attached_victim", double)
    module = importlib.import_module("attached_victim")
    assert vars(module)["value"] == 2
    assert importlib.import_module("attached_victim") is module


def test_a_module_that_is_there_is_hooked_at_once(finder: AfterImport) -> None:
    module = importlib.import_module("attached_victim")
    finder.call("attached_victim", double)
    assert vars(module)["value"] == 2


def test_a_hook_that_fails_harms_no_import(finder: AfterImport, capfd: pytest.CaptureFixture[str]) -> None:
    finder.call("attached_victim", fail)
    finder.call("attached_victim", double)
    assert vars(importlib.import_module("attached_victim"))["value"] == 2
    assert "RuntimeError: hook" in capfd.readouterr().err


def test_a_module_that_is_missing_is_still_missing(finder: AfterImport) -> None:
    finder.call("attached_nowhere", double)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("attached_nowhere")

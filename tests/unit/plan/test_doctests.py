"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import resihp_plan

MODULES = [m.name for m in pkgutil.walk_packages(resihp_plan.__path__, "resihp_plan.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples() -> None:
    modules = [importlib.import_module(name) for name in MODULES]
    documented = [m.__name__ for m in modules if doctest.testmod(m).attempted]
    assert {"resihp_plan.layout", "resihp_plan.simulate", "resihp_plan.packing"} <= set(documented)

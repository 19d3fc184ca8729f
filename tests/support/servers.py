"""Real servers that tests need. A missing one fails the test in CI and skips it elsewhere, with the reason."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["in_ci", "server_missing"]


def in_ci() -> bool:
    """True when `CI=true` (any case, or `1`): then nothing may be skipped for want of a server."""
    return os.environ.get("CI", "").lower() in {"true", "1"}


def server_missing(name: str, how_to_get_it: str) -> NoReturn:
    """Ends the running test: fails it in CI, skips it elsewhere. `how_to_get_it` tells a person what to install."""
    reason = f"{name} is not on this machine: {how_to_get_it}"
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)

"""Errors of this room: `StartupError` <- `SettingsError`, `PortInUse`. Each is one line for a person, exit status 2."""

from __future__ import annotations


class StartupError(Exception):
    """The process cannot start for a reason outside of it: settings, ports, an unreachable bus or database."""


class SettingsError(StartupError):
    """An environment variable or argument is wrong; the text names it."""


class PortInUse(StartupError):
    """The address of the health endpoint is taken."""

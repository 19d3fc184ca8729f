"""This room's errors: `AgentError` <- `StartFailed`, `RefusedCommand` <- `StaleCommand`, `ZygoteLost`, `DeclaredLost`.

`ZygoteLost` and `DeclaredLost` end the agent: it stops its workers and exits, so that a supervisor starts it anew with
a fresh incarnation.
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of this room's errors; the text is one line for a person."""


class StartFailed(AgentError):
    """The zygote, a store or a worker could not be started."""


class ZygoteLost(AgentError):
    """The zygote is gone; nobody can start or reap workers any more."""


class DeclaredLost(AgentError):
    """The detector gave this node up: survivors go on without it, so its workers must not act any more."""


class RefusedCommand(AgentError):
    """This agent does not obey the command; nothing changed."""


class StaleCommand(RefusedCommand):
    """The command is older than what this agent has already obeyed; the text says which numbers."""

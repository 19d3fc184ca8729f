"""Asked for by people: the audit trail. Only the gateway says them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from resihp_messages.event.base import _Event
from resihp_messages.ids import JsonObject, Text, Token


class ActionRequested(_Event):
    """Somebody asked for an action. Stored before the request goes to the scheduler: nothing happens unrecorded."""

    schema_name: ClassVar[str] = "ActionRequested.v1"

    action: Token
    """Verb of the request, such as RequestStop."""
    actor: Text
    """Name of the token that was shown; `anonymous` where none is asked for."""
    role: Token
    client: Text = ""
    """Address of the other end of the connection."""
    reason: Text = ""
    parameters: JsonObject = Field(default_factory=dict)


class ActionAnswered(_Event):
    """What became of it; same correlation id."""

    schema_name: ClassVar[str] = "ActionAnswered.v1"

    action: Token
    actor: Text
    accepted: bool
    detail: Text = ""
    """Why it was refused, or that nobody answered (then it may still be carried out)."""
    reconfiguration_id: Token | None = None

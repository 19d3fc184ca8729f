"""The envelope around every bus message, and the base class of bodies with their registry."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar, Generic, Self, TypeVar

from pydantic import AwareDatetime, Field, SerializeAsAny

from resihp_messages.ids import Count, Text, Token, Wire, new_id


class Kind(StrEnum):
    """What a message is; the fourth token of its subject, which also decides its transport."""

    BEAT = "beat"
    REPORT = "report"
    SCORE = "score"
    EVENT = "event"
    COMMAND = "command"
    ACK = "ack"
    REQUEST = "request"
    REPLY = "reply"


class Body(Wire):
    """Base of message bodies. Subclasses state `schema_name` (``Name.vN``) and `kind`, and are registered by name."""

    schema_name: ClassVar[str]
    kind: ClassVar[Kind]
    registry: ClassVar[dict[str, type[Body]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        name = cls.__dict__.get("schema_name")
        if name is not None:
            if name in Body.registry:
                raise TypeError(f"schema {name} is registered twice")
            Body.registry[name] = cls


B = TypeVar("B", bound=Body, covariant=True)


class Envelope(Wire, Generic[B]):
    """Header and body. `message_id` is also the `Nats-Msg-Id`, so that a retried publish is stored once."""

    message_id: Token = Field(default_factory=new_id)
    schema_: str = Field(alias="schema")
    job: Token
    epoch: Count = 0
    source: Token
    """Who sends: `agent-n0`, `detector`, `scheduler`, ..."""
    incarnation: Token
    """Fresh per process start of the sender."""
    correlation_id: Text = ""
    """The incident or request that this message belongs to."""
    occurred_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    """For people; durations inside bodies are monotonic seconds."""
    body: SerializeAsAny[B]

    @classmethod
    def of(
        cls,
        body: B,  # type: ignore[misc]  # a constructor: covariance is safe
        *,
        job: str,
        source: str,
        incarnation: str,
        epoch: int = 0,
        correlation_id: str = "",
        message_id: str | None = None,
    ) -> Self:
        """Wrap `body`; the schema comes from its class. A given `message_id` makes a publish idempotent."""
        return cls.model_validate(
            {
                "message_id": message_id or new_id(),
                "schema": type(body).schema_name,
                "job": job,
                "epoch": epoch,
                "source": source,
                "incarnation": incarnation,
                "correlation_id": correlation_id,
                "body": body,
            }
        )


AnyEnvelope = Envelope[Body]

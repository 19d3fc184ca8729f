"""The bus as the rooms see it. Two adapters keep this contract: `JetStreamBus` and `MemoryBus` (tests/contract).

Errors: `BusError` <- `BusUnavailable` (not connected or no answer in time: try again), `BusRefused` (configuration or
permission: trying again is useless).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from resihp_messages import AnyEnvelope, Kind


class BusError(Exception):
    """Root of this room's errors."""


class BusUnavailable(BusError):
    """Not connected, or no answer in time. The message may or may not have been stored: retry with the same id."""


class BusRefused(BusError):
    """Wrong configuration or missing permission."""


@dataclass(frozen=True)
class Ack:
    """Handled; never deliver again."""


@dataclass(frozen=True)
class Retry:
    """Not handled; deliver again after `after_s`."""

    after_s: float = 0.2


@dataclass(frozen=True)
class Reject:
    """Cannot be handled, ever: count it, log the reason, never deliver again."""

    reason: str


Outcome = Ack | Retry | Reject
Handler = Callable[[AnyEnvelope], Awaitable[Outcome]]
Listener = Callable[[AnyEnvelope], Awaitable[None]]
Responder = Callable[[AnyEnvelope], Awaitable[AnyEnvelope]]


@dataclass(frozen=True)
class Stored:
    """A message with its place in its stream."""

    sequence: int
    envelope: AnyEnvelope


class Subscription(Protocol):
    """A running subscription."""

    async def stop(self) -> None:
        """Stop fetching and wait until the handler in progress is done. Idempotent."""


class Bus(Protocol):
    """Publish, consume, listen, request. All subjects come from `resihp_messages.subjects`."""

    async def connect(self) -> None:
        """Connect and make sure that the streams exist. Raises `BusUnavailable` or `BusRefused` within a time limit."""

    async def close(self) -> None:
        """Stop all subscriptions, flush what was published, disconnect. Idempotent."""

    @property
    def connected(self) -> bool:
        """Whether the connection is up at this moment."""

    async def publish(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 2.0) -> None:
        """Publish to `resihp.v1.<envelope.job>.<body kind>.<detail>`.

        Kinds with a stream are stored exactly once per `message_id` when this returns; raises `BusUnavailable` if that
        is not known. Beats go over core NATS: fire and forget, newest wins, raises `BusUnavailable` if not connected.
        """

    def publish_soon(self, envelope: AnyEnvelope, *, detail: str) -> bool:
        """Hand over without waiting (reports, scores). Never raises and never blocks; False if it was dropped."""

    async def consume(
        self, durable: str, kind: Kind, handler: Handler, *, job: str = "*", detail: str = "*", batch: int = 64
    ) -> Subscription:
        """Deliver stored messages in order, one at a time, at least once, across restarts of either side.

        A new durable starts at the beginning of its stream. One consumer at a time per durable name: a second one makes
        messages come twice. Acknowledged after the handler returns, so handlers are idempotent by `message_id`.
        A malformed message is counted, logged once per source and rejected; it never reaches the handler. An exception
        of the handler is logged and retried with growing delays; after `max_tries` of them the message is rejected
        (dead letter). An explicit `Retry` never runs out: the handler knows the reason. While a message is retried,
        later ones of the same durable wait (order is kept). `batch` is how many are fetched together if there are many.
        Raises `BusUnavailable` if the consumer cannot be made now, `BusRefused` if never, ValueError for a kind that is
        not stored.
        """

    async def listen(self, kind: Kind, listener: Listener, *, job: str = "*", detail: str = "*") -> Subscription:
        """Live messages only (also of stored kinds), one at a time, in order of arrival; what was missed is missed.

        A listener that falls behind by thousands loses the oldest. Its exceptions are logged and do not end it. When
        this returns, messages that are published from now on are heard.
        """

    async def request(self, envelope: AnyEnvelope, *, detail: str, timeout_s: float = 5.0) -> AnyEnvelope:
        """Ask and wait for one reply. Raises `BusUnavailable` if nobody answers in time.

        While nobody serves the verb it is asked again (a leader may be about to take over), always with the same
        message id; a responder answers one id once.
        """

    async def serve(self, detail: str, responder: Responder, *, job: str = "*") -> Subscription:
        """Answer requests with this verb, one at a time. A responder that raises is answered for, with a refusal."""

    async def keep(self, name: str, data: bytes, *, timeout_s: float = 5.0) -> None:
        """Keep `data` under `name`, in place of what was kept before; a reader finds the old or the new, whole.

        For a day, across restarts of both sides. Raises `BusUnavailable` if it is not known to be kept.
        """

    async def kept(self, name: str, *, timeout_s: float = 5.0) -> bytes | None:
        """What is kept under `name`; None if nothing is. Raises `BusUnavailable`."""

    async def last_sequence(self, kind: Kind) -> int:
        """Sequence of the newest message in the stream of `kind`, 0 if there is none: how far a cold start replays."""

    def replay(
        self, kind: Kind, *, after_sequence: int | None, job: str = "*", detail: str = "*"
    ) -> AsyncGenerator[Stored, None]:
        """Every stored message after `after_sequence` (None: from now on), then live ones, in order, until closed.

        "Now" is the first step of the iteration. A position beyond the stream's end belongs to an earlier life of the
        stream, so all of it is new. Close the generator (`contextlib.aclosing`) if you leave it early.
        """

"""Delivers: one durable reader of the event stream per webhook, so that a slow receiver holds up nobody else and a
restart of the gateway begins where it ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import structlog

from resihp_bus.port import Ack, Bus, Handler, Outcome, Retry, Stored
from resihp_chassis import Metrics
from resihp_gateway.event_frame import view
from resihp_gateway.models import EventView
from resihp_gateway.webhooks.config import Webhook
from resihp_gateway.webhooks.message import request
from resihp_messages import AnyEnvelope, Kind

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
REMEMBERED = 1024
_log = structlog.get_logger("gateway")


class Undelivered(Exception):
    """The receiver did not take it. `final`: asking again is useless. `wait_s`: it asked for this much patience."""

    def __init__(self, reason: str, *, final: bool, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.wait_s = wait_s


async def deliver(client: httpx.AsyncClient, hook: Webhook, event: EventView, now_s: int) -> int:
    """One attempt; returns the status. Raises `Undelivered`."""
    sent = request(hook, event, now_s)
    try:
        answer = await client.post(hook.url, content=sent.body, headers=dict(sent.headers), timeout=hook.timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Undelivered(str(error) or type(error).__name__, final=isinstance(error, httpx.InvalidURL)) from error
    if answer.is_success:
        return answer.status_code
    temporary = answer.status_code >= 500 or answer.status_code in (408, 425, 429)
    after = answer.headers.get("retry-after", "")
    wait_s = min(float(after), LONGEST_WAIT_S) if after.isdecimal() else None
    raise Undelivered(f"status {answer.status_code}", final=not temporary, wait_s=wait_s)


class Notifier:
    """All webhooks of one gateway. `now` is the time of day, `metrics` counts deliveries by webhook and outcome."""

    def __init__(
        self,
        bus: Bus,
        hooks: Sequence[Webhook],
        client: httpx.AsyncClient,
        metrics: Metrics,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._bus, self._hooks, self._client, self._now = bus, hooks, client, now
        self._count = metrics.counter("webhook_deliveries", "Webhook requests by outcome.", ("webhook", "outcome"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Deliver while the context is open."""
        subscriptions = [
            await self._bus.consume(
                f"webhook-{hook.name}", Kind.EVENT, self.handler(hook), job=hook.job or "*", batch=1
            )
            for hook in self._hooks
        ]
        try:
            yield
        finally:
            for subscription in subscriptions:
                await subscription.stop()

    def handler(self, hook: Webhook) -> Handler:
        """Acknowledges what the receiver has taken, or will never take."""
        done: OrderedDict[str, None] = OrderedDict()
        tries: dict[str, int] = {}

        async def handle(envelope: AnyEnvelope) -> Outcome:
            event = view(Stored(0, envelope))
            if event.name not in hook.events or event.message_id in done:
                return Ack()
            outcome = await self._attempt(hook, event, tries.get(event.message_id, 0))
            if isinstance(outcome, Retry):
                tries[event.message_id] = tries.get(event.message_id, 0) + 1
                return outcome
            tries.pop(event.message_id, None)
            done[event.message_id] = None
            while len(done) > REMEMBERED:
                done.popitem(last=False)
            return outcome

        return handle

    async def _attempt(self, hook: Webhook, event: EventView, tried: int) -> Outcome:
        now = self._now()
        if (now - event.occurred_at).total_seconds() > hook.max_age_s:
            if tried:
                _log.warning("webhook given up", webhook=hook.name, name=event.name, tries=tried)
            self._count.labels(hook.name, "expired").inc()
            return Ack()
        try:
            await deliver(self._client, hook, event, int(now.timestamp()))
        except Undelivered as error:
            _log.warning(
                "webhook not delivered", webhook=hook.name, name=event.name, reason=str(error), tries=tried + 1
            )
            if error.final:
                self._count.labels(hook.name, "refused").inc()
                return Ack()
            self._count.labels(hook.name, "failed").inc()
            return Retry(error.wait_s or min(FIRST_WAIT_S * 2**tried, LONGEST_WAIT_S))
        self._count.labels(hook.name, "delivered").inc()
        return Ack()

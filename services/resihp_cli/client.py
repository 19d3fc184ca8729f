"""The gateway as the CLI sees it: typed requests, and the event stream with automatic resume.

Errors: `CliError` for an unreachable gateway and for a refusal (the problem's own sentence).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter

from resihp_cli.errors import CliError
from resihp_gateway.decision_view import DecisionView
from resihp_gateway.models import (
    Accepted,
    ControlView,
    DeviceView,
    EventView,
    IncidentView,
    IterationView,
    JobView,
    PlanView,
    ReconfigurationView,
)
from resihp_messages import JobSpec

PREFIX = "/api/v1"
SILENCE_S = 12.0
"""The gateway sends a comment more often than this; a longer silence means that the stream is dead."""
TOKEN_VARIABLE = "RESIHP_TOKEN"
"""A bearer token for gateways that ask for one."""
PAGE = 1000
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class GatewayClient:
    """Requests to one gateway. Use as an async context manager."""

    def __init__(self, url: str, *, timeout_s: float = 10.0, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=self.url, timeout=timeout_s, transport=transport, trust_env=False, headers=headers
        )

    async def __aenter__(self) -> GatewayClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def jobs(self) -> list[JobView]:
        return await self._get("/jobs", TypeAdapter(list[JobView]))

    async def job(self, job: str) -> JobView:
        return await self._get(f"/jobs/{job}", TypeAdapter(JobView))

    async def devices(self, job: str) -> list[DeviceView]:
        return await self._get(f"/jobs/{job}/devices", TypeAdapter(list[DeviceView]))

    async def incidents(self, job: str) -> list[IncidentView]:
        """All of them, oldest first."""
        return await self._all("/incidents", TypeAdapter(list[IncidentView]), job=job)

    async def reconfigurations(self, job: str) -> list[ReconfigurationView]:
        """All of them, oldest first."""
        return await self._all("/reconfigurations", TypeAdapter(list[ReconfigurationView]), job=job)

    async def plans(self, job: str) -> list[PlanView]:
        """Every one, page by page."""
        found: list[PlanView] = []
        while page := await self._plans(job, after=found[-1].epoch if found else -1):
            found += page
        return found

    async def _plans(self, job: str, after: int) -> list[PlanView]:
        return await self._get("/plans", TypeAdapter(list[PlanView]), job=job, after=after)

    async def iterations(self, job: str, *, after: int = 0, limit: int = 1000) -> list[IterationView]:
        return await self._get("/iterations", TypeAdapter(list[IterationView]), job=job, after=after, limit=limit)

    async def all_iterations(self, job: str) -> list[IterationView]:
        """Every committed iteration, page by page."""
        found: list[IterationView] = []
        while page := await self.iterations(job, after=found[-1].iteration if found else 0):
            found += page
        return found

    async def submit(self, spec: JobSpec) -> Accepted:
        return await self._post("/jobs", spec.model_dump(mode="json"))

    async def request_plan(self, job: str, plan: dict[str, Any], reason: str) -> Accepted:
        return await self._post(f"/jobs/{job}/plans", {"plan": plan, "reason": reason})

    async def inflict(self, job: str, rank: int, fault: str, **details: float) -> Accepted:
        """`details`: for `slow` and `slow_link`, `factor` and `for_s`; for `slow_link` also `peer`."""
        return await self._post(f"/jobs/{job}/faults", {"rank": rank, "fault": fault, **details})

    async def restart(self, job: str, rank: int) -> Accepted:
        return await self._post(f"/jobs/{job}/restarts", {"rank": rank})

    async def validate(self, job: str, ranks: Sequence[int]) -> Accepted:
        return await self._post(f"/jobs/{job}/validations", {"ranks": list(ranks)})

    async def act(self, job: str, action: str, body: Mapping[str, Any]) -> Accepted:
        """Govern the scheduler: `action` is mode, approve, veto, hold, evict, readmit, undo or threshold."""
        return await self._post(f"/jobs/{job}/{action}", body)

    async def control(self, job: str) -> ControlView:
        return await self._get(f"/jobs/{job}/control", TypeAdapter(ControlView))

    async def decisions(self, job: str) -> list[DecisionView]:
        """What was weighed, newest first."""
        return await self._get(f"/jobs/{job}/decisions", TypeAdapter(list[DecisionView]))

    async def stop(self, job: str, reason: str) -> Accepted:
        return await self._post(f"/jobs/{job}/stop", {"reason": reason})

    async def ready(self) -> bool:
        """Whether /readyz says yes; never raises."""
        try:
            return (await self._http.get("/readyz", timeout=1.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def events(
        self, *, job: str | None = None, name: str | None = None, after: int | None = None, reconnect: bool = True
    ) -> AsyncGenerator[EventView, None]:
        """Events after `after` (None: from now on), in order, for ever. A broken stream is resumed after the last event
        seen, so that nothing is lost or repeated. With `reconnect` false the first break raises `CliError`."""
        parameters = {key: value for key, value in (("job", job), ("name", name)) if value is not None}
        last = after
        while True:
            headers = {} if last is None else {"Last-Event-ID": str(last)}
            try:
                async with self._http.stream(
                    "GET",
                    "/events",
                    params=parameters,
                    headers=headers,
                    timeout=httpx.Timeout(5.0, read=SILENCE_S),
                ) as response:
                    if response.status_code != 200:
                        await response.aread()
                        raise _refusal(response)
                    async for event in _parse(response.aiter_lines()):
                        last = event.sequence
                        yield event
                if not reconnect:
                    raise CliError(f"event stream of {self.url} ended: the gateway stops")
            except httpx.HTTPError as error:
                if not reconnect:
                    raise CliError(f"event stream of {self.url}: {_reason(error)}") from error
            except _Busy:
                if not reconnect:
                    raise
            await asyncio.sleep(0.2)

    async def facts(self, job: str) -> AsyncGenerator[tuple[str, Any], None]:
        """The dashboard's stream: (name, value) of each fact, all at first, then each when it changes. Ends when the
        stream breaks: everything comes anew on the next one. Raises `CliError`."""
        timeout = httpx.Timeout(5.0, read=SILENCE_S)
        try:
            async with self._http.stream("GET", f"{PREFIX}/live", params={"job": job}, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal(response)
                name = ""
                async for line in response.aiter_lines():
                    if line.startswith("event: "):
                        name = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        yield name, json.loads(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise _Busy(f"gateway {self.url} cannot be reached: {_reason(error)}") from error

    async def _all(self, path: str, answer: TypeAdapter[list[M]], **parameters: Any) -> list[M]:
        """A whole list, page by page."""
        response = await self._call("GET", path, params={**parameters, "limit": PAGE})
        found = answer.validate_json(response.content)
        while (link := response.links.get("next")) is not None:
            response = await self._call("GET", link["url"].removeprefix(PREFIX))
            found += answer.validate_json(response.content)
        return found

    async def _get(self, path: str, answer: TypeAdapter[T], **parameters: Any) -> T:
        response = await self._call("GET", path, params=parameters)
        return answer.validate_json(response.content)

    async def _post(self, path: str, body: Mapping[str, Any]) -> Accepted:
        response = await self._call("POST", path, json=body)
        return Accepted.model_validate_json(response.content)

    async def _call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, PREFIX + path, **arguments)
        except httpx.HTTPError as error:
            raise _Busy(f"gateway {self.url} cannot be reached: {_reason(error)}") from error
        if not response.is_success:
            raise _refusal(response)
        return response


class _Busy(CliError):
    """Unreachable or 503: worth trying again."""


def is_temporary(error: CliError) -> bool:
    """Whether a request that failed with `error` may succeed a little later (gateway or scheduler restarting)."""
    return isinstance(error, _Busy)


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _refusal(response: httpx.Response) -> CliError:
    try:
        detail = str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = response.text[:200] or response.reason_phrase
    kind = _Busy if response.status_code in (502, 503, 504) else CliError
    return kind(f"{detail} (status {response.status_code})")


async def _parse(lines: AsyncIterator[str]) -> AsyncIterator[EventView]:
    """Server-sent events -> events; comments and other fields are skipped (WHATWG HTML, section 9.2.6)."""
    data: list[str] = []
    async for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield EventView.model_validate(json.loads("\n".join(data)))
            data = []


def dump(value: BaseModel | list[BaseModel]) -> str:
    """Models as indented JSON, for `--json`."""
    items = [v.model_dump(mode="json") for v in value] if isinstance(value, list) else value.model_dump(mode="json")
    return json.dumps(items, indent=2)

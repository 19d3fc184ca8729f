"""schemathesis against the OpenAPI document: thousands of generated requests, valid and not, over a real socket. Every
answer is a documented status with the documented content; nothing is a bug of ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from resihp_messages.request import Reply
from support.dashboard import Server
from support.gateway import open_gateway, play_scheduler

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
STREAMS = {"/events", "/api/v1/live"}
"""They do not end."""
EXAMPLES = {"/api/v1/jobs/{job}/whatif": 15}
"""A process each; else `USUAL`."""
USUAL = 45
VERBS = (
    *("SubmitJob", "RequestPlan", "RequestFault", "RequestRestart", "RequestValidation", "RequestStop", "RequestMode"),
    *("RequestHold", "RequestRuling", "RequestEvict", "RequestReadmit", "RequestUndo", "RequestThreshold"),
)


def requests(url: str, document: dict[str, Any]) -> Counter[int]:
    """Sends them; raises what is wrong with an answer. Returns how many answers had which status."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    wrong = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    seen: Counter[int] = Counter()
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        if operation.path in STREAMS:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=EXAMPLES.get(operation.path, USUAL),
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def answers_as_described(case: Any) -> None:
                case.headers.pop("Authorization", None)  # made-up tokens end at the door
                if "job" in case.path_parameters and len(str(case.path_parameters["job"])) % 2:
                    case.path_parameters["job"] = "demo"
                response = case.call(base_url=url, timeout=120)
                seen[response.status_code] += 1
                case.validate_response(response, checks=wrong)

            with contextlib.suppress(Unsatisfiable):  # nothing to negate: no parameter, no body
                answers_as_described()
    return seen


async def test_every_answer_is_as_described(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, write_burst=1_000_000, write_rate_per_s=1e6) as gateway:
        for verb in VERBS:
            await play_scheduler(gateway, verb, Reply(accepted=True))
        server = Server(gateway)
        await server.start()
        try:
            seen = await asyncio.to_thread(requests, server.url, gateway.app.openapi())
        finally:
            await server.stop()
    print(f"{seen.total()} requests: {dict(sorted(seen.items()))}")
    assert seen.total() >= 2000
    assert seen[200] > 100
    assert seen[202] > 20
    assert seen[422] > 100

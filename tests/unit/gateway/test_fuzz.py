"""Whatever a client sends, the answer is a documented one: seeded random requests for every described operation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from support.gateway import open_gateway

NUM_REQUESTS = 80
STREAMS = {"/events", "/api/v1/live"}
STRINGS = (
    "demo",
    "r1",
    "i1",
    "",
    "a.b",
    "..%2f",
    "x" * 300,
    "\x00",
    "ü",
    "0",
    "-1",
    "1e9",
    "NaN",
    "null",
    "2026-01-01T00:00:00Z",
)


def scalar(rng: random.Random) -> Any:
    return rng.choice([*STRINGS, 0, 1, -1, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, True, None])


def nested(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return scalar(rng)
    if kind < 0.7:
        return [nested(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {
        rng.choice(["rank", "plan", "faults", "mode", "reason", "5", "replicas"]): nested(rng, depth + 1)
        for _ in range(3)
    }


def body_for(schema: dict[str, Any], components: dict[str, Any], rng: random.Random) -> Any:
    """Fields that exist with values that may not fit, or no object at all."""
    if rng.random() < 0.2:
        return nested(rng)
    for option in (schema, *schema.get("anyOf", ())):
        if "$ref" in option:
            schema = components[option["$ref"].rpartition("/")[2]]
            break
    known = schema.get("properties", {})
    found = {name: nested(rng) for name in known if rng.random() < 0.7}
    for example in schema.get("examples", ()):
        if rng.random() < 0.5:
            found = {**example, **({rng.choice(list(known)): nested(rng)} if known and rng.random() < 0.5 else {})}
    return found


@pytest.mark.parametrize("seed", [1])
async def test_every_answer_is_documented(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with open_gateway(tmp_path, write_burst=100_000, request_timeout_s=0.02, whatif_timeout_s=0.01) as gateway:
        transport = httpx.ASGITransport(gateway.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=30) as http:
            document = (await http.get("/openapi.json")).json()
            components = document["components"]["schemas"]
            operations = [
                (method, path, operation)
                for path, item in document["paths"].items()
                if path not in STREAMS
                for method, operation in item.items()
            ]
            for _ in range(NUM_REQUESTS):
                method, path, operation = rng.choice(operations)
                url = path
                query: dict[str, Any] = {}
                for parameter in operation.get("parameters", ()):
                    value = scalar(rng) if rng.random() < 0.6 else rng.choice(["demo", "r1", 3, 1])
                    if parameter["in"] == "path":
                        url = url.replace(f"{{{parameter['name']}}}", quote(str(value), safe="") or "_")
                    elif parameter["in"] == "query" and rng.random() < 0.7:
                        query[parameter["name"]] = value
                content = operation.get("requestBody", {}).get("content", {}).get("application/json")
                body = body_for(content["schema"], components, rng) if content else None
                response = await http.request(method, url, params=query, **({"json": body} if content else {}))
                told = f"{method} {url} {query} {body!r} -> {response.status_code} {response.text[:300]}"
                assert str(response.status_code) in operation["responses"] or response.status_code == 404, told
                assert response.status_code != 500, told
                if response.status_code >= 400:
                    assert response.headers["content-type"] == "application/problem+json", told

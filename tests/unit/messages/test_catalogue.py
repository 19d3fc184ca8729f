"""The description of the messages: complete, consistent, and the page in docs is the generated one."""

from __future__ import annotations

import re
from typing import Any

from resihp_messages import catalogue
from resihp_messages.envelope import Body, Kind
from support.golden import PAGE


def test_page_is_the_generated_one() -> None:
    assert PAGE.read_text() == catalogue.markdown(), "run `python -m support.golden` in tests/"


def test_every_schema_is_described_once() -> None:
    document = catalogue.asyncapi()
    assert set(document["components"]["messages"]) == set(Body.registry)
    assert set(document["channels"]) == {str(kind) for kind in Kind}
    listed = [name for channel in document["channels"].values() for name in channel["messages"]]
    assert sorted(listed) == sorted(Body.registry)
    assert all(catalogue.summary(body) for body in Body.registry.values())


def test_every_reference_leads_somewhere() -> None:
    document = catalogue.asyncapi()

    def check(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                target: Any = document
                for part in value["$ref"].removeprefix("#/").split("/"):
                    assert part in target, value["$ref"]
                    target = target[part]
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(document)
    assert re.fullmatch(r"resihp\.v1\.\{job\}\.event\.\{detail\}", document["channels"]["event"]["address"])

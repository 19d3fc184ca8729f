"""One line per record, in both formats and for records of libraries."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from resihp_chassis import configure_logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers, root.level = handlers, level


def test_json_lines() -> None:
    out = io.StringIO()
    configure_logs(level="info", format="json", service="toy", incarnation="i1", stream=out)
    log = structlog.get_logger("x")
    log.debug("unseen")
    log.info("planned", epoch=2, ranks=(0, 1))
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("failed")
    logging.getLogger("library").warning("from %s", "outside")
    logging.getLogger("library").info("unseen")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["planned", "failed", "from outside"]
    assert lines[0] == {**lines[0], "service": "toy", "incarnation": "i1", "level": "info", "epoch": 2, "ranks": [0, 1]}
    assert "ValueError: first" in lines[1]["exception"]
    assert lines[2]["logger"] == "library"
    assert lines[2]["service"] == "toy"


def test_console() -> None:
    out = io.StringIO()
    configure_logs(level="warning", format="console", service="toy", incarnation="i1", stream=out)
    structlog.get_logger("x").info("unseen")
    structlog.get_logger("x").warning("slow", seconds=1.5)
    assert "slow" in out.getvalue()
    assert "seconds=1.5" in out.getvalue()
    assert "unseen" not in out.getvalue()

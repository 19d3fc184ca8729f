"""Structured logs on stderr, one line per record. Records of libraries (stdlib logging) take the same way."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure_logs(*, level: str, format: str, service: str, incarnation: str, stream: TextIO | None = None) -> None:
    """Call once per process, before anything logs. `format`: `json` or `console`."""
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: list[Any]
    if format == "json":
        renderer = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        renderer = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    structlog.configure(
        processors=[*_SHARED, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service, incarnation=incarnation)

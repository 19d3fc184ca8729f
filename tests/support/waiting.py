"""Polling with a bound: tests wait for a condition, never for an amount of time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

__all__ = ["wait_for", "wait_for_blocking"]

T = TypeVar("T")

PATIENCE = 6.0
"""Bounds are written for a quiet host. They are there to end a test that hangs, not to judge how fast anything is: a
crowded host gets so many times as long."""


@overload
async def wait_for(
    condition: Callable[[], Awaitable[T]], timeout_s: float = ..., *, every_s: float = ..., what: str = ...
) -> T: ...
@overload
async def wait_for(
    condition: Callable[[], T], timeout_s: float = ..., *, every_s: float = ..., what: str = ...
) -> T: ...
async def wait_for(
    condition: Callable[[], Any], timeout_s: float = 10.0, *, every_s: float = 0.01, what: str = ""
) -> Any:
    """Returns the first true value of `condition` (a function or a coroutine function), looked at every `every_s`.

    Raises `TimeoutError` after `PATIENCE` x `timeout_s` with `what` and the last value seen. The event loop keeps
    running meanwhile.
    """
    deadline = time.monotonic() + PATIENCE * timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(_message(condition, PATIENCE * timeout_s, what, value))
        await asyncio.sleep(every_s)


def wait_for_blocking(
    condition: Callable[[], T], timeout_s: float = 10.0, *, every_s: float = 0.01, what: str = ""
) -> T:
    """`wait_for` for tests without an event loop."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise TimeoutError(_message(condition, PATIENCE * timeout_s, what, value))
        time.sleep(every_s)


def _message(condition: object, timeout_s: float, what: str, value: object) -> str:
    name = what or getattr(condition, "__qualname__", repr(condition))
    return f"not within {timeout_s:g} s: {name} (last value: {value!r})"

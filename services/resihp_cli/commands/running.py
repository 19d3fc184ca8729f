"""Runs a command's coroutine to its end, with SIGTERM treated like Ctrl-C: everything is stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` that also unwinds on SIGTERM and SIGHUP. Raises KeyboardInterrupt for all three."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        ended_by: list[int] = []

        def end(number: int) -> None:
            ended_by.append(number)
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, end, number)
        try:
            return await main
        except asyncio.CancelledError:
            if ended_by:
                raise KeyboardInterrupt from None
            raise

    return asyncio.run(guarded())

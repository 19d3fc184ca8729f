"""Ends of background tasks."""

from __future__ import annotations

import asyncio


def being_cancelled() -> bool:
    """Whether the current task was asked to end. A loop around calls of the client looks at this every turn: the client
    swallows cancellations that reach it while it waits to flush."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

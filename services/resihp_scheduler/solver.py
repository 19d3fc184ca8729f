"""Answers within a deadline: in a process of its own, which can be killed, or (small jobs, tests) in a thread.

The process keeps numpy and the planner loaded, so that a question costs its planning time only; it ends when its input
closes, so nothing is left behind whoever dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
import time
from typing import Any, Protocol

import structlog

from resihp_scheduler.planning import Choice, NoPlan, in_thread
from resihp_scheduler.question import Question
from resihp_scheduler.solve import solve

log = structlog.get_logger(__name__)

HEADER = struct.Struct(">I")
"""Length of the JSON document that follows, in bytes."""


class Solver(Protocol):
    """Asks the full planner."""

    async def start(self) -> None:
        """Make ready for the first question. Idempotent."""

    async def ask(self, question: Question, deadline_s: float, *, may_finish: bool = False) -> Choice | NoPlan | None:
        """The answer, or None if there was none in time (or the process died): then somebody else must answer.

        `may_finish`: a late planner is not killed, only its answer is dropped; so the next question need not wait for a
        new one to start."""

    async def close(self) -> None:
        """Idempotent."""


class ThreadSolver:
    """In this process. After the deadline the thread runs on, unheard."""

    async def start(self) -> None:
        return

    async def ask(self, question: Question, deadline_s: float, *, may_finish: bool = False) -> Choice | NoPlan | None:
        answer = await in_thread(lambda: (solve(question, time.monotonic),), deadline_s)
        return answer[0] if isinstance(answer, tuple) else None

    async def close(self) -> None:
        return


class ProcessSolver:
    """`python -m resihp_scheduler.solver_process`, one question at a time; killed if it is late, and started anew."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self.num_killed = 0

    async def start(self) -> None:
        async with self._one_at_a_time:
            try:
                await self._start()
            except OSError as error:  # no process to be had now: the fast planner stands in, each question tries again
                log.warning("planner process does not start", error=str(error))

    async def ask(self, question: Question, deadline_s: float, *, may_finish: bool = False) -> Choice | NoPlan | None:
        answering = asyncio.create_task(self._answer(question))
        done, _ = await asyncio.wait({answering}, timeout=deadline_s)
        if done:
            return answering.result()
        log.warning("planner is late", deadline_s=deadline_s, devices=len(question.devices), killed=not may_finish)
        if not may_finish:
            await self._end()  # whoever waits for its answer sees the end of the stream
        return None

    async def _answer(self, question: Question) -> Choice | NoPlan | None:
        async with self._one_at_a_time:
            try:
                return _read_answer(await self._exchange(question.to_dict()))
            except (OSError, EOFError, ValueError) as error:
                log.warning("planner process failed", error=str(error) or type(error).__name__)
            await self._end()  # half an answer must not be taken for the next one
        return None

    async def close(self) -> None:
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            self.num_killed += 1
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "resihp_scheduler.solver_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        return self._process

    async def _exchange(self, document: dict[str, Any]) -> dict[str, Any]:
        process = await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        raw = json.dumps(document).encode()
        process.stdin.write(HEADER.pack(len(raw)) + raw)
        await process.stdin.drain()
        (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
        answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
        return answer


def answer_to_dict(answer: Choice | NoPlan) -> dict[str, Any]:
    return {"choice": answer.to_dict()} if isinstance(answer, Choice) else {"no_plan": answer.reason}


def _read_answer(document: dict[str, Any]) -> Choice | NoPlan:
    return Choice.from_dict(document["choice"]) if "choice" in document else NoPlan(document["no_plan"])

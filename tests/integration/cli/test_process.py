"""Supervision of one process, with real processes: restart, back-off, stop, and nobody left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from resihp_cli.errors import CliError
from resihp_cli.process import ProcessSpec, SupervisedProcess
from support.waiting import wait_for, wait_for_blocking

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEP


@pytest.fixture
async def supervise(tmp_path: Path) -> AsyncIterator[Callable[..., SupervisedProcess]]:
    made: list[SupervisedProcess] = []

    def make(script: str, **changes: object) -> SupervisedProcess:
        log = tmp_path / f"{len(made)}.log"

        async def ready(_: int) -> bool:
            return log.is_file() and b"up" in log.read_bytes()

        values: dict[str, object] = {"stop_timeout_s": 5.0, **changes}
        spec = ProcessSpec("p", lambda: (sys.executable, "-c", script), log, ready, **values)  # type: ignore[arg-type]
        made.append(SupervisedProcess(spec))
        return made[-1]

    yield make
    await asyncio.gather(*(process.stop() for process in made))


Supervise = Callable[..., SupervisedProcess]


async def test_a_killed_process_comes_back_and_stop_ends_it(supervise: Supervise) -> None:
    process = supervise(SLEEP)
    await process.start(timeout_s=120)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await wait_for(lambda: process.pid != first and process.restarts == 1, 20)
    assert process.pid is not None
    last = process.pid
    await process.stop()
    assert not psutil.pid_exists(last)
    await process.stop()  # idempotent


async def test_failure_before_ready_is_told_with_the_last_words(supervise: Supervise) -> None:
    process = supervise("import sys; print('noise'); sys.exit('resihp x: no such bus')")
    with pytest.raises(CliError, match=r"p ended with exit code 1: resihp x: no such bus \(log: "):
        await process.start(timeout_s=120)
    assert process.restarts == 0


async def test_a_program_that_does_not_exist(supervise: Supervise, tmp_path: Path) -> None:
    async def ready(_: int) -> bool:
        return False

    spec = ProcessSpec("ghost", lambda: (str(tmp_path / "none"),), tmp_path / "ghost.log", ready)
    with pytest.raises(CliError, match="cannot start ghost"):
        await SupervisedProcess(spec).start(timeout_s=120)


async def test_never_ready_ends_the_wait(supervise: Supervise) -> None:
    process = supervise("import time; time.sleep(600)")
    with pytest.raises(CliError, match=r"not ready within 0\.3 s"):
        await process.start(timeout_s=0.3)


async def test_deaf_and_frozen_processes_are_ended_too(supervise: Supervise) -> None:
    deaf, frozen = supervise(STUBBORN, stop_timeout_s=0.2), supervise(SLEEP)
    await asyncio.gather(deaf.start(timeout_s=120), frozen.start(timeout_s=120))
    assert deaf.pid is not None
    assert frozen.pid is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    await asyncio.gather(deaf.stop(), frozen.stop())
    assert not psutil.pid_exists(deaf.pid)
    assert not psutil.pid_exists(frozen.pid)


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    """The supervisor dies by SIGKILL, so no handler of it can clean up: the kernel must."""
    script = f"""
import asyncio, pathlib, sys
from resihp_cli.process import ProcessSpec, SupervisedProcess
async def ready(pid):
    print(pid, flush=True)
    return True
async def main():
    command = (sys.executable, "-c", {STUBBORN!r})
    spec = ProcessSpec("p", lambda: command, pathlib.Path({str(tmp_path / "log")!r}), ready)
    await SupervisedProcess(spec).start(timeout_s=120)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        assert psutil.pid_exists(child)
    finally:
        supervisor.kill()
        supervisor.wait()
        assert supervisor.stdout is not None
        supervisor.stdout.close()
    wait_for_blocking(lambda: _gone(child), 10)


def _gone(pid: int) -> bool:
    """No such process, or one that only waits to be reaped by the machine's init."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True

"""One supervised process: restarted with back-off when it crashes, never outliving its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from resihp_cli.errors import CliError

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 5.0
STABLE_AFTER_S = 10.0
"""A process that ran this long has earned a quick restart again."""
BAD_SETUP = 2
"""Exit code of our services for bad settings or an unreachable part before they were ready."""


@dataclass(frozen=True)
class ProcessSpec:
    """What to run and how to know that it is ready."""

    name: str
    command: Callable[[], Sequence[str]]
    """Asked again at every (re)start."""
    log: Path
    ready: Callable[[int], Awaitable[bool]]
    """Whether the process with this id serves now; called until it says yes. Must not raise."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of the supervisor's own environment."""
    pass_fds: tuple[int, ...] = ()
    stop_signal: int = signal.SIGTERM
    stop_timeout_s: float = 5.0


class SupervisedProcess:
    """Keeps one process running until `stop`. All methods belong to one event loop, run by the main thread: the parent
    death signal follows the *thread* that forked."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pid: int | None = None
        self.restarts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self._failure: CliError | None = None
        self._ever_ready = False
        self._may_run = asyncio.Event()
        self._may_run.set()

    def strike_down(self) -> None:
        """SIGKILL the process and all that it started, as if the machine had failed; it stays down until `release`."""
        self._may_run.clear()
        if self.pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            for victim in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()

    def release(self) -> None:
        """Let a process that was struck down start again."""
        self._may_run.set()

    async def start(self, *, timeout_s: float) -> None:
        """Start and wait until ready. Raises `CliError` with the process' last words if it fails or takes too long: it
        is ended then."""
        try:
            await self._start(timeout_s)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, timeout_s: float) -> None:
        self._keeper = asyncio.create_task(self._keep(), name=f"keep-{self.spec.name}")
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.pid is None or not await self.spec.ready(self.pid):
            if self._failure is not None:
                raise self._failure
            if asyncio.get_running_loop().time() > deadline:
                raise CliError(f"{self.spec.name} was not ready within {timeout_s:g} s{self._last_words()}")
            await asyncio.sleep(0.02)
        self._ever_ready = True

    async def stop(self) -> None:
        """End the process: its stop signal first, SIGKILL to its group after `stop_timeout_s`. Idempotent."""
        self._stopping = True
        if self._keeper is None:
            return
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.spec.stop_signal)
                # A stopped (SIGSTOP) process takes SIGTERM only once it continues.
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self.spec.stop_timeout_s)
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        self._keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeper
        self._keeper = None

    async def _keep(self) -> None:
        """Run, wait for the end, run again after a growing pause."""
        loop, backoff_s = asyncio.get_running_loop(), FIRST_BACKOFF_S
        while not self._stopping:
            started = loop.time()
            try:
                code = await self._run_once()
            except OSError as error:
                self._failure = CliError(f"cannot start {self.spec.name}: {error}")
                return
            except CliError as error:
                self._failure = error
                return
            if self._was_stopped():
                return
            if not self._ever_ready:
                self._failure = CliError(f"{self.spec.name} ended with exit code {code}{self._last_words()}")
                return
            if loop.time() - started > STABLE_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            if not self._may_run.is_set():
                await self._may_run.wait()
                continue
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            self.restarts += 1

    async def _run_once(self) -> int:
        with self.spec.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.spec.environment},
                pass_fds=self.spec.pass_fds,
                start_new_session=True,  # Ctrl-C of the terminal reaches only the supervisor, which stops all in order
                preexec_fn=_die_with_parent,
            )
        self.pid = self._process.pid
        return await self._process.wait()

    def _was_stopped(self) -> bool:
        """`stop` may have been called while the process ran."""
        return self._stopping

    def _last_words(self) -> str:
        """The last line of the log: our services print one clear line before they give up."""
        return last_words(self.spec.log)


def last_words(log: Path) -> str:
    """`: <last non-empty line> (log: PATH)` of a log file."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return (f": {lines[-1][:500]}" if lines else "") + f" (log: {log})"


def _die_with_parent() -> None:
    """In the child, before exec: SIGKILL when the supervisor dies, however it dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""Detection in whole demos on the virtual clock: real processes, a real server, the detector as it is shipped.

Each of them is one part of `python -m benchmarks.detection --live`, kept like the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.demo import JOB, DemoFailed, RunningDemo, demo, run_demo
from resihp_cli.client import GatewayClient

RANK, AT = 5, 30
KILLED_AT = (8, 20, 29, 31, 33, 45)
"""Iterations after which the detector is killed: while it learns, before, in and after the fault."""

QUIET = """name = "demo"
iterations = {iterations}
[model]
num_layers = 2
hidden = 32
num_heads = 4
num_kv_heads = 2
ffn_hidden = 96
[parallel]
tp = 1
pp = {pp}
dp = {dp}
[batch]
micro_batches = 8
tokens_per_micro_batch = 512
[clock]
virtual = true
flops_per_s = 2e9
"""
"""Small enough for a thousand iterations; documents of 1 to 512 tokens, so attention varies many times over."""


SLOW_LINK = """
[[faults]]
kind = "slow_link"
rank = 0
peer = 1
factor = 0.25
iteration = 30
"""

CORRUPTIBLE = """
[telemetry]
fingerprint_every = 10
[snapshots]
every = 10
"""


def slow(p: float, iterations: int) -> str:
    """`resihp demo --slow 5@30xP`: what its document says."""
    arguments = _arguments(p, iterations)
    found = asyncio.run(run_demo(*arguments))
    return f"`resihp demo --headless {' '.join(arguments)}`: {_incidents(found)}."


def killed(p: float, iterations: int) -> str:
    """The same while the detector is killed again and again."""
    found, kills = asyncio.run(with_kills(p, iterations))
    return (
        f"`resihp demo --headless {' '.join(_arguments(p, iterations))}` with {kills} SIGKILLs of the detector (after "
        f"iterations {', '.join(map(str, KILLED_AT))}): {_incidents(found)}."
    )


def quiet(iterations: int) -> str:
    """Many healthy iterations of strongly varying lengths: what is said."""
    found = asyncio.run(_train(QUIET.format(iterations=iterations, pp=1, dp=4)))
    step_s = found["median_iteration_s"]
    took = f", {1000 * step_s:.0f} ms each (median)" if step_s else ""
    return (
        f"{iterations:,} iterations without a fault, documents of 1 to 512 tokens, 4 workers (DP 4){took}: "
        f"{_incidents(found)}."
    )


def link(iterations: int) -> str:
    """A pipeline edge at a quarter of its speed: what is said."""
    told = asyncio.run(slow_link(iterations))
    found, evidence = told["verdict"], told["evidence"]
    return (
        "A pipeline edge between ranks 0 and 1 at 0.25 of its speed from iteration 30 (fault script, DP 2 x PP 2): "
        f"LinkSlow {evidence['link']} of ranks {found['ranks']} at iteration {evidence['iteration']} "
        f"(p {found['p']:.3f})."
    )


def _arguments(p: float, iterations: int) -> tuple[str, ...]:
    return ("--slow", f"{RANK}@{AT}x{p:g}", "--iterations", str(iterations))


async def with_kills(p: float, iterations: int) -> tuple[dict[str, Any], int]:
    """The document of a demo with a slow device, and how often the detector was killed in it."""
    kills = 0
    async with demo(_arguments(p, iterations)) as running:
        async with GatewayClient((await running.info()).gateway_url) as client:
            for iteration in KILLED_AT:
                await running.reach(client, iteration)
                os.kill(await _detector(running), signal.SIGKILL)
                kills += 1
        return await running.result(), kills


async def _detector(running: RunningDemo) -> int:
    """Its process now: the supervisor starts it again after each death, and says so in the run's folder."""
    while True:
        pid = (await running.info()).pids["detector"]
        if _is_alive(pid):
            return pid
        running.check_alive()
        await asyncio.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def _train(text: str) -> dict[str, Any]:
    with _job_file(text) as path:
        async with demo([path], command_name="train") as running:
            return await running.result()


async def slow_link(iterations: int, *, by_hand: bool = False) -> dict[str, Any]:
    """A job with a slow pipeline edge; the body of the first event about it. Raises `DemoFailed` if there is none.
    `by_hand`: made slow through the API once iteration 30 is committed, not by a script."""
    text = QUIET.format(iterations=iterations, pp=2, dp=2) + ("" if by_hand else SLOW_LINK)
    with _job_file(text) as path:
        async with demo([path], command_name="train") as running, GatewayClient(await _url(running)) as client:
            if by_hand:
                await running.reach(client, 30)
                await client.inflict(JOB, 0, "slow_link", peer=1, factor=0.25)
            async for told in client.events(job=JOB, name="LinkSlow", after=0, reconnect=False):
                return dict(told.body)
    raise DemoFailed("no slow link was said")


async def corrupted(rank: int, iterations: int = 160) -> tuple[dict[str, Any], dict[str, Any]]:
    """A demo on the virtual clock in which one bit of a rank's parameters flips once iteration 12 is committed: the
    first `StateCorrupted`, and the demo's document."""
    text = QUIET.format(iterations=iterations, pp=2, dp=2) + CORRUPTIBLE
    with _job_file(text) as path:
        async with demo([path], command_name="train") as running, GatewayClient(await _url(running)) as client:
            await running.reach(client, 12)
            await client.inflict(JOB, rank, "corrupt")
            async for told in client.events(job=JOB, name="StateCorrupted", after=0, reconnect=False):
                return dict(told.body), await running.result()
    raise DemoFailed("nobody was said to be damaged")


async def _url(running: RunningDemo) -> str:
    return (await running.info()).gateway_url


@contextlib.contextmanager
def _job_file(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as job:
        job.write(text)
        job.flush()
        yield job.name


def _incidents(found: dict[str, Any]) -> str:
    told = [
        f"{i['kind']} rank {i['rank']} at iteration {i['detected_iteration']} "
        f"(p {i['p']:.3f}, confidence {i['confidence']:.4f})"
        for i in found["incidents"]
    ]
    return "; ".join(told) if told else "no alarm"

"""Every framework's example on four real ranks under `resihp run -- torchrun`: who is slow is named, and nobody else.

One run per example: 300 healthy iterations with documents of varying length, then a slow backward pass on one rank,
of which the example knows nothing (`support/slow_rank.py` adds it). Frameworks that are not installed here may be in
another environment: `RESIHP_FRAMEWORKS_PYTHON` names its Python.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import wait_for_blocking

ROOT = Path(__file__).parents[3]
SLOW, MILLISECONDS, FROM, STEPS = 2, 40, 301, 320
FAILURES = {"DeviceSlow", "DeviceSuspected", "LinkSlow", "WorkerLost", "WorkerFrozen", "JobHung", "JobSlow"}
CASES = {
    "ddp": ("plain_ddp.py", "torch", ("--iterations", "{steps}"), ""),
    "fsdp": ("fsdp2.py", "torch", ("--steps", "{steps}"), ""),
    "hf": ("hf_trainer.py", "accelerate", ("--steps", "{steps}", "--output", "{folder}/out"), ""),
    "accelerate": ("accelerate_loop.py", "accelerate", ("--steps", "{steps}"), ""),
    "lightning": ("lightning_ddp.py", "lightning", ("--steps", "{steps}"), ""),
    "deepspeed": ("deepspeed_zero.py", "deepspeed", ("--steps", "{steps}"), ""),
    "megatron": ("megatron_core.py", "megatron", ("--steps", "{steps}"), ""),
    "megatron-pp2": ("megatron_core.py", "megatron", ("--steps", "{steps}", "--pp", "2"), "pp=2,dp=2"),
}

pytestmark = pytest.mark.soak


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "RESIHP_HOME": str(home), "OMP_NUM_THREADS": "1"}


def resihp(home: Path, *arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "resihp_cli", *arguments]
    return subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where one system runs for all jobs."""
    folder = tmp_path_factory.mktemp("home")
    with (folder / "up.log").open("w") as log:
        command = [sys.executable, "-m", "resihp_cli", "up"]
        system = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for_blocking(lambda: "gateway  http" in (folder / "up.log").read_text(), 120.0, what="up")
            yield folder
        finally:
            system.send_signal(signal.SIGINT)
            system.wait(timeout=60)


def python_with(package: str) -> str:
    """Here or in the named environment. Skips if the package is in neither."""
    for python in (sys.executable, os.environ.get("RESIHP_FRAMEWORKS_PYTHON")):
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if python and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    pytest.skip(f"{package} is not installed (an optional extra; RESIHP_FRAMEWORKS_PYTHON may name an environment)")


def faults(events: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    return [(e["name"], tuple(e["body"]["verdict"]["ranks"])) for e in events if e["name"] in FAILURES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_healthy_for_300_iterations_then_the_slow_rank_is_named_within_six(
    case: str, home: Path, tmp_path: Path
) -> None:
    example, package, arguments, axes = CASES[case]
    python = python_with(package)
    given = [a.format(steps=STEPS, folder=tmp_path) for a in arguments]
    done = resihp(
        home, "run", "--name", case, *(("--axes", axes) if axes else ()), "--",
        python, "-m", "torch.distributed.run", "--nproc-per-node", "4",
        str(ROOT / "tests" / "support" / "slow_rank.py"), str(SLOW), str(MILLISECONDS), str(FROM),
        str(ROOT / "examples" / "attach" / example), *given,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "training goes on unobserved" not in done.stderr  # no part of the client failed
    print(done.stderr)
    found = resihp(home, "events", "--job", case, "--json")
    assert found.returncode == 0, found.stderr
    events = [json.loads(line) for line in found.stdout.splitlines()]
    told = faults(events)
    print(told)
    # A suspicion is half of the evidence and no alarm: crowded cores bring others up to it, and it passes.
    assert {fault for fault in told if fault[0] != "DeviceSuspected"} == {("DeviceSlow", (SLOW,))}, done.stderr
    about = [e["body"]["evidence"] for e in events if e["name"] in FAILURES and e["body"]["verdict"]["ranks"] == [SLOW]]
    assert FROM <= about[0]["iteration"] < FROM + 6, about[0]  # suspected first, if in doubt
    assert [e["name"] for e in events][-1] == "JobFinished"

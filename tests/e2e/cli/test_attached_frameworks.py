"""Every framework's example on four real ranks under `resihp run -- torchrun`: who is slow is named, and nobody else.

The examples know nothing of the slow backward pass (`support/slow_rank.py` adds it). Frameworks that are not installed
here may be in another environment: `RESIHP_FRAMEWORKS_PYTHON` names its Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SLOW, FROM, STEPS = 2, 40, 60
FAILURES = {"DeviceSlow", "DeviceSuspected", "LinkSlow", "WorkerLost", "WorkerFrozen", "JobHung", "JobSlow"}
EXAMPLES = [
    ("plain_ddp.py", "torch", ("--iterations", "{steps}")),
    ("fsdp2.py", "torch", ("--steps", "{steps}")),
    ("hf_trainer.py", "accelerate", ("--steps", "{steps}", "--output", "{folder}/out")),
    ("lightning_ddp.py", "lightning", ("--steps", "{steps}")),
    ("deepspeed_zero.py", "deepspeed", ("--steps", "{steps}")),
]

pytestmark = pytest.mark.soak


def resihp(folder: Path, *arguments: str, timeout_s: float = 220.0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RESIHP_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "resihp_cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def python_with(package: str) -> str:
    """Here or in the named environment. Skips if the package is in neither."""
    for python in (sys.executable, os.environ.get("RESIHP_FRAMEWORKS_PYTHON")):
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
        if python and subprocess.run([python, "-c", probe], check=False).returncode == 0:
            return python
    pytest.skip(f"{package} is not installed (an optional extra; RESIHP_FRAMEWORKS_PYTHON may name an environment)")


def watched(folder: Path, example: str, package: str, arguments: tuple[str, ...], slow: int, steps: int) -> list[Any]:
    """Run it; every event of the job, oldest first."""
    python = python_with(package)
    given = [a.format(steps=steps, folder=folder) for a in arguments]
    done = resihp(
        folder, "run", "--name", "j", "--", python, "-m", "torch.distributed.run", "--nproc-per-node", "4",
        str(ROOT / "tests" / "support" / "slow_rank.py"), str(slow), "40", str(FROM),
        str(ROOT / "examples" / "attach" / example), *given,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "training goes on unobserved" not in done.stderr  # no part of the client failed
    found = resihp(folder, "events", "--job", "j", "--json")
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def faults(events: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    return [(e["name"], tuple(e["body"]["verdict"]["ranks"])) for e in events if e["name"] in FAILURES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("example", "package", "arguments"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_the_slow_rank_is_named_within_six_iterations(
    example: str, package: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    events = watched(tmp_path, example, package, arguments, SLOW, STEPS)
    assert set(faults(events)) == {("DeviceSlow", (SLOW,))}
    first = next(e["body"]["evidence"] for e in events if e["name"] == "DeviceSlow")
    assert FROM <= first["iteration"] <= FROM + 6


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("example", "package", "arguments"), EXAMPLES[:2], ids=["plain_ddp.py", "fsdp2.py"])
def test_three_hundred_healthy_iterations_raise_no_alarm(
    example: str, package: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    events = watched(tmp_path, example, package, arguments, -1, 300)
    assert faults(events) == []
    assert [e["name"] for e in events][-1] == "JobFinished"

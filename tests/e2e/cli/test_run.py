"""`resihp run -- torchrun ...`: a script that knows nothing of us; who is dead or missing is named.

Who is slow: test_attached_frameworks.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "attach" / "plain_ddp.py"


def run(folder: Path, *arguments: str, world: int = 4, hang_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return _resihp(
        folder, "run", "--name", "j", "--hang", str(hang_s), "--",
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world), str(SCRIPT), *arguments,
    )  # fmt: skip


def _resihp(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RESIHP_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "resihp_cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def events(folder: Path) -> list[dict[str, Any]]:
    """What `resihp events` says afterwards."""
    done = _resihp(folder, "events", "--job", "j", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdicts(found: list[dict[str, Any]], *names: str) -> list[tuple[str, list[int]]]:
    return [(e["name"], e["body"]["verdict"]["ranks"]) for e in found if e["name"] in names]


def test_a_dead_rank_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--iterations", "30", "--kill-rank", "1", "--at", "8", world=2)
    assert done.returncode == 1, done.stderr  # torchrun's own
    assert "worker lost: rank 1" in done.stderr
    found = events(tmp_path)
    assert verdicts(found, "WorkerLost", "WorkerFrozen") == [("WorkerLost", [1])]
    assert [e["name"] for e in found][-1] == "JobFailed"


@pytest.mark.soak
def test_a_rank_that_does_not_come_is_named_with_the_last_collectives(tmp_path: Path) -> None:
    run(tmp_path, "--iterations", "30", "--hang-rank", "3", "--at", "15", "--hang-s", "9", hang_s=3.0)
    (hang,) = [e for e in events(tmp_path) if e["name"] == "JobHung"]
    assert hang["body"]["verdict"]["ranks"] == [3]
    collectives = hang["body"]["evidence"]["last_collective"]
    assert set(collectives) == {"0", "1", "2", "3"}
    assert "all_reduce" in collectives["0"]
    assert "plain_ddp.py" in hang["body"]["evidence"]["where"]["3"]


def test_output_and_exit_status_are_the_commands_own(tmp_path: Path) -> None:
    done = _resihp(tmp_path, "run", "--", sys.executable, "-c", "import sys; print('trained'); sys.exit(3)")
    assert (done.stdout, done.returncode) == ("trained\n", 3)

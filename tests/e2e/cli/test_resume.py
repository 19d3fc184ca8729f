"""`resihp train --resume`: a finished job goes on in another layout; a damaged checkpoint stops it with one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOB = """
name = "kept"
iterations = {iterations}
dtype = "float64"
[parallel]
tp = {tp}
pp = {pp}
dp = {dp}
[checkpoints]
path = "{path}"
every = 4
"""


def train(folder: Path, *options: str, code: int = 0, **numbers: int) -> tuple[dict[str, Any], str]:
    """Write the job file and train it in a home of its own; the outcome and what was printed."""
    (folder / "job.toml").write_text(JOB.format(path=folder / "checkpoints", **numbers))
    outcome = folder / "out.json"
    command = [sys.executable, "-m", "resihp_cli", "train", str(folder / "job.toml"), "--headless", *options]
    done = subprocess.run(
        [*command, "--json", str(outcome)],
        env={**os.environ, "RESIHP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(outcome.read_text())
    return found, done.stdout


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_job_goes_on_after_its_end(tmp_path: Path) -> None:
    train(tmp_path, iterations=6, tp=2, pp=2, dp=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["it00000004", "it00000006"]
    found, _ = train(tmp_path, "--resume", "--verify", iterations=12, tp=1, pp=2, dp=1)
    assert found["holds"], found["failures"]
    assert found["epochs"][0]["first_iteration"] == 7
    assert found["parity"]["max_abs_diff"] <= 1e-9
    victim = tmp_path / "checkpoints" / "it00000012" / "rank0.safetensors"
    raw = bytearray(victim.read_bytes())
    raw[-5] ^= 1
    victim.write_bytes(raw)
    _, printed = train(tmp_path, "--resume", iterations=16, tp=1, pp=2, dp=1, code=1)
    assert "it00000012/rank0.safetensors: checksum" in printed

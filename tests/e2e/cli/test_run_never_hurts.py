"""`resihp run` loses its agent, its bus or its disk: what the training prints is what an unwatched run prints."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

SCRIPT = """
import time, torch
torch.manual_seed(0); torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(80):
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print(step, loss.item(), flush=True)
    time.sleep(0.05)  # so that there is a middle
print([p.double().sum().item() for p in model.parameters()], flush=True)
"""
STRIKE_AT = 20
Pids = Mapping[str, int]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(240)]


def kill(name: str) -> Callable[[Pids], None]:
    def strike(pids: Pids) -> None:
        struck = [pid for known, pid in pids.items() if known.startswith(name)]
        assert struck, pids
        for pid in struck:
            os.kill(pid, signal.SIGKILL)

    return strike


def fill_disk(pids: Pids) -> None:
    """No process of ours can write to a file any more."""
    for pid in pids.values():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))


@pytest.fixture(scope="module")
def unwatched() -> str:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


@pytest.mark.parametrize("strike", [kill("agent"), kill("nats"), fill_disk], ids=["agent", "bus", "disk"])
def test_output_and_exit_status_stay_the_same(strike: Callable[[Pids], None], tmp_path: Path, unwatched: str) -> None:
    env = {**os.environ, "RESIHP_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1"}
    command = [sys.executable, "-m", "resihp_cli", "run", "--name", "j", "--", sys.executable, "-c", SCRIPT]
    with (
        (tmp_path / "errors").open("w+") as errors,
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(f"{STRIKE_AT} "):
                strike(services(tmp_path))
        code = process.wait(timeout=120)
        errors.seek(0)
        said = errors.read()
    assert "".join(lines) == unwatched, said
    assert code == 0, said


def services(home: Path) -> Pids:
    """By name, of the only run."""
    (file,) = home.glob("runs/*/run.json")
    pids: Pids = json.loads(file.read_text())["pids"]
    return pids

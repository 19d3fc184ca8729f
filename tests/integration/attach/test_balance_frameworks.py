"""Unequal rows under FSDP2 and the Hugging Face Trainer, on four real ranks: parameters equal to the even split."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "support" / "balanced_rank.py"


def train(framework: str, speeds: str, folder: Path) -> list[torch.Tensor]:
    output = folder / f"{speeds}.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(PROGRAM)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, framework, speeds, str(output)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[torch.Tensor] = torch.load(output)
    return found


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.parametrize("framework", ["fsdp2", "hf"])
def test_unequal_rows_change_no_parameter(framework: str, tmp_path: Path) -> None:
    if framework == "hf":
        pytest.importorskip("accelerate")
    even = train(framework, "1,1,1,1", tmp_path)
    for ours, theirs in zip(train(framework, "1,1,0.5,1", tmp_path), even, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


def test_a_trainer_whose_loss_is_a_mean_of_means_is_refused() -> None:
    """Only what is read of the Trainer; the real one needs seconds to import."""
    pytest.importorskip("transformers")
    from resihp_attach.balance import LossDependsOnSplit
    from resihp_attach.integrations.transformers import balance

    class Arguments:
        average_tokens_across_devices = False

    class Trainer:
        args: Any = Arguments()

    with pytest.raises(LossDependsOnSplit, match="mean over the rank's own tokens"):
        balance(Trainer())

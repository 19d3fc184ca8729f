"""Frameworks with their adapters, each in one real process: what the agent would be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from resihp_attach import watch
from resihp_attach.integrations import megatron
from support.attach import frames_of, hooked, listen

EXAMPLES = Path(__file__).parents[3] / "examples" / "attach"


def run(example: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Iterations that one rank of the example reports."""
    with listen(folder / "a.sock") as sock:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / example), *arguments],
            env=hooked(folder, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            frames = frames_of(sock)
            out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert "resihp:" not in out  # no part failed
    assert frames[-1]["type"] == "bye"
    return [f for f in frames if f["type"] == "iteration"]


@pytest.mark.soak
def test_hugging_face_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    iterations = run("hf_trainer.py", tmp_path, "--steps", "3", "--output", str(tmp_path / "out"))
    assert [f["iteration"] for f in iterations] == [1, 2, 3]
    for frame in iterations:
        assert len(frame["unit_forward_s"]) == 2  # gradient accumulation
        assert frame["lengths_source"] == "mask"
        assert 0 < sum(frame["unit_tokens"]) <= 2 * 4 * 64
    assert iterations[-1]["loss"] is not None


@pytest.mark.soak
def test_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    iterations = run("accelerate_loop.py", tmp_path, "--steps", "4")
    assert [f["iteration"] for f in iterations] == [1, 2, 3, 4]
    for frame in iterations:
        assert len(frame["unit_forward_s"]) == 2  # gradient accumulation
        assert frame["lengths_source"] == "mask"
        assert all(4 * 12 <= tokens <= 4 * 48 for tokens in frame["unit_tokens"])


@pytest.mark.soak
def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    iterations = run("lightning_ddp.py", tmp_path, "--steps", "18")
    assert [f["iteration"] for f in iterations] == list(range(1, 19))
    assert all(4 * 12 <= f["unit_tokens"][0] <= 4 * 48 and f["lengths_source"] == "mask" for f in iterations)
    assert "eval" in iterations[16]["phases_s"]


def test_megatrons_schedule_functions_are_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a module with the two functions that Megatron-core's schedules look up (0.16: same names and arguments)."""
    frames: list[dict[str, Any]] = []
    monkeypatch.setattr(watch.recorder, "_emit", frames.append)
    schedules = ModuleType("schedules")

    def forward_step(forward_step_func: Any, data_iterator: Any, model: Any) -> Any:
        return forward_step_func(data_iterator, model)

    def backward_step(loss: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.run_backward(  # as Megatron's `custom_backward` does
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )

    vars(schedules).update(forward_step=forward_step, backward_step=backward_step)
    megatron.hook(schedules)
    layer = torch.nn.Linear(8, 1)
    batches = iter([{"tokens": torch.zeros(2, 8, dtype=torch.long)}] * 3)
    for _ in range(3):
        loss = vars(schedules)["forward_step"](lambda data, m: m(next(data)["tokens"].float()).sum(), batches, layer)
        vars(schedules)["backward_step"](loss)
    watch.recorder.step_done()
    (frame,) = frames
    assert frame["unit_tokens"] == [16, 16, 16]
    assert frame["unit_sum_sq_len"] == [128, 128, 128]
    assert min(frame["unit_backward_s"]) > 0


def test_megatron_core_has_these_functions() -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    assert schedules.forward_step.__code__.co_varnames[:2] == ("forward_step_func", "data_iterator")
    assert callable(schedules.backward_step)

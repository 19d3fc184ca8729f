"""The hooks in a real torch process that knows nothing of them: no line of the script is ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from resihp_attach import place
from support.attach import SITE, frames_of, hooked, listen

SCRIPT = """
import os, sys, threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, g):
        time.sleep(0.05)
        return g

net = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64))
model = torch.nn.parallel.DistributedDataParallel(net)
first, second = torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), lr=1e-3)
mask = torch.tensor([[1] * 16, [1] * 8 + [0] * 8])

class Masked(torch.nn.Module):
    def __init__(self): super().__init__(); self.net = net; self.register_buffer("seen", torch.zeros(1))
    def forward(self, input_ids, attention_mask): return Slow.apply(self.net(input_ids))

model = torch.nn.parallel.DistributedDataParallel(Masked())
broadcast = model._distributed_broadcast_coalesced
model._distributed_broadcast_coalesced = lambda *args: (time.sleep(0.1), broadcast(*args))  # rank 0 is late
recorder, seen = sys.modules["resihp_attach"].watch.recorder, []

def reduced_late(state, bucket):  # DDP waits for it in C++; it comes after the end of compute has been noticed
    future = torch.futures.Future()
    def finish():
        deadline = time.monotonic() + 60
        while recorder._gradient is None and time.monotonic() < deadline: time.sleep(0.001)
        seen.append(recorder._gradient is not None)
        time.sleep(0.02)
        future.set_result(bucket.buffer())
    threading.Thread(target=finish).start()
    return future

model.register_comm_hook(None, reduced_late)
for step in range(3):
    for micro in range(2):
        batch = torch.randint(0, 64, (2, 16))
        loss = (model(batch, mask) if micro else model(input_ids=batch, attention_mask=mask)).sum()
        with model.no_sync() if micro == 0 else __import__("contextlib").nullcontext():
            loss.backward()
    dist.all_reduce(torch.ones(1))
    first.step(); second.step(); first.zero_grad(); second.zero_grad()
    if step == 0:
        with torch.no_grad():
            model(input_ids=torch.randint(0, 64, (2, 16)), attention_mask=mask)
        torch.save({}, os.devnull)
assert seen and all(seen), seen
print("the script is done")
"""


def run(script: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=hooked(folder, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_iterations_micro_batches_lengths_and_phases(tmp_path: Path) -> None:
    with listen(tmp_path / "a.sock") as sock, run(SCRIPT, tmp_path, RANK="0", WORLD_SIZE="1") as process:
        frames = frames_of(sock)
        out, errors = process.communicate(timeout=120)
    assert "the script is done" in out, errors
    assert "resihp" not in errors
    assert frames[0]["type"] == "hello"
    assert frames[-1] == {"type": "bye", "iteration": 3, "error": ""}
    iterations = [f for f in frames if f["type"] == "iteration"]
    assert [f["iteration"] for f in iterations] == [1, 2, 3]
    for frame in iterations:
        assert len(frame["unit_backward_s"]) == 2
        assert min(frame["unit_backward_s"]) >= 0.05
        assert frame["unit_tokens"] == [24, 24]
        assert frame["unit_sum_sq_len"] == [16 * 16 + 8 * 8] * 2
        assert frame["lengths_source"] == "mask"
        assert frame["wait_s"] >= 0.1 + 0.02  # DDP's own: for buffers and for gradients
    assert set(iterations[1]["phases_s"]) == {"eval", "checkpoint"}


def test_an_exception_is_the_last_word(tmp_path: Path) -> None:
    with (
        listen(tmp_path / "a.sock") as sock,
        run("raise ValueError('loss is nan')", tmp_path, RANK="0", WORLD_SIZE="1") as process,
    ):
        frames = frames_of(sock)
        _, errors = process.communicate(timeout=120)
    assert frames[-1]["error"] == "ValueError: loss is nan"
    assert "ValueError: loss is nan" in errors
    assert process.returncode == 1


@pytest.mark.parametrize("environment", [{}, {"RANK": "0", "WORLD_SIZE": "1", place.AXES: "nonsense"}])
def test_a_script_runs_whatever_is_wrong_with_us(tmp_path: Path, environment: dict[str, str]) -> None:
    """No agent, or settings that make no sense."""
    with run("print(6 * 7)", tmp_path, **environment) as process:
        out, _ = process.communicate(timeout=120)
    assert (out, process.returncode) == ("42\n", 0)


def test_another_sitecustomize_still_works(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = 'yes'\n")
    script = "import os, sys; print(os.environ['THEIRS'], 'resihp_attach' in sys.modules)"
    path = os.pathsep.join([str(SITE), str(tmp_path)])
    with run(script, tmp_path, PYTHONPATH=path) as process:
        out, errors = process.communicate(timeout=120)
    assert out == "yes True\n", errors


def test_a_rank_speaks_for_itself_and_its_helpers_are_silent(tmp_path: Path) -> None:
    script = """
import subprocess, sys
helper = "from resihp_attach import watch; print(watch.client)"
print(subprocess.run([sys.executable, "-c", helper], capture_output=True, text=True, check=True).stdout.strip())
"""
    with listen(tmp_path / "a.sock") as sock, run(script, tmp_path, RANK="0", WORLD_SIZE="1") as process:
        frames = frames_of(sock)
        out, errors = process.communicate(timeout=120)
    assert out == "None\n", errors
    assert [f["type"] for f in frames if f["type"] == "hello"] == ["hello"]


FSDP_SCRIPT = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", rank=0, world_size=1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer = torch.nn.Embedding(64, 32), torch.nn.Linear(32, 64)
    def forward(self, input_ids, attention_mask):
        return self.layer(self.embedding(input_ids))

model = Net()
fully_shard(model.layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
mask = torch.tensor([[1] * 16, [1] * 8 + [0] * 8])
for step in range(3):
    for micro in range(2):
        model(input_ids=torch.randint(0, 64, (2, 16)), attention_mask=mask).sum().backward()
    optimizer.step(); optimizer.zero_grad()
print("the script is done")
"""


@pytest.mark.soak
def test_fully_sharded(tmp_path: Path) -> None:
    with listen(tmp_path / "a.sock") as sock, run(FSDP_SCRIPT, tmp_path, RANK="0", WORLD_SIZE="1") as process:
        frames = frames_of(sock)
        out, errors = process.communicate(timeout=120)
    assert "the script is done" in out, errors
    assert "resihp" not in errors
    iterations = [f for f in frames if f["type"] == "iteration"]
    assert [f["iteration"] for f in iterations] == [1, 2, 3]
    for frame in iterations[1:]:
        assert frame["unit_tokens"] == [24, 24]  # the root's call, not those of its parts
        assert min(*frame["unit_forward_s"], *frame["unit_backward_s"]) > 0.0


SEEDED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(400):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
print([p.double().sum().item() for p in model.parameters()])
"""


@pytest.mark.soak
def test_training_is_the_same_when_the_agent_dies_in_the_middle(tmp_path: Path) -> None:
    with listen(tmp_path / "a.sock") as sock, run(SEEDED, tmp_path, RANK="0", WORLD_SIZE="1") as process:
        line, _ = sock.accept()
        line.recv(1024)
        line.close()
        sock.close()
        (tmp_path / "a.sock").unlink()
        watched, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    with run(SEEDED, tmp_path, PYTHONPATH="", RANK="0", WORLD_SIZE="1") as process:
        alone, errors = process.communicate(timeout=120)
    assert watched == alone, errors


COMPILED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1)
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(1))
    def forward(self, features):
        return self.layer(features) * self.scale

model = torch.compile(torch.nn.parallel.DistributedDataParallel(Net()), backend="eager")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
print([p.double().sum().item() for p in model.parameters()])
"""

WHOLE_GRAPH = """
import torch
from resihp_attach import attach
net = torch.nn.Linear(8, 8)
attach(net)
print(torch.compile(net, backend="eager", fullgraph=True)(torch.ones(2, 8)).shape)
"""


@pytest.mark.soak
def test_a_compiled_model_trains_the_same_and_without_a_warning(tmp_path: Path) -> None:
    strict = {"RANK": "0", "WORLD_SIZE": "1", "PYTHONWARNINGS": "error::UserWarning"}
    with listen(tmp_path / "a.sock") as sock, run(COMPILED, tmp_path, **strict) as process:
        frames = frames_of(sock)
        watched, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert [f["iteration"] for f in frames if f["type"] == "iteration"] == [1, 2, 3, 4, 5]
    with run(COMPILED, tmp_path, PYTHONPATH="", **strict) as process:
        alone, errors = process.communicate(timeout=120)
    assert watched == alone, errors


@pytest.mark.soak
def test_a_model_that_is_compiled_as_one_graph_after_it_was_attached_still_is(tmp_path: Path) -> None:
    with run(WHOLE_GRAPH, tmp_path, PYTHONPATH="") as process:
        out, errors = process.communicate(timeout=120)
    assert out == "torch.Size([2, 8])\n", errors

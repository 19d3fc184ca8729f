"""The measured process of `benchmarks.attach_overhead`: one loop whose steps go with and without hooks, in turns.

Prints JSON: pairs of seconds (off, on) by wall clock and by the training thread's processor time, and what the client's
own thread took. The order within a pair alternates.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

import resihp_attach

WARMUP = 20


class Net(nn.Module):
    """12 layers of width 128: 2.4 M parameters in 147 tensors."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(12)]
        self.embedding, self.layers = nn.Embedding(256, 128), nn.Sequential(*layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.layers(self.embedding(input_ids))
        return found


class Switch:
    """The places that the hooks patch: as torch has them, and as the client leaves them."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str]] = [
            (torch.autograd, "backward"),
            (DistributedDataParallel, "forward"),
            (dist.Work, "wait"),
        ]
        self._step_hooks: dict[int, Any] = optimizers._global_optimizer_post_hooks
        self._off = self._now()
        resihp_attach.install()
        self._on = self._now()
        if any(a is b for a, b in zip(self._off[0], self._on[0], strict=True)) or not self._on[1]:
            raise RuntimeError("the client no longer patches these places: the comparison would be of nothing")

    def _now(self) -> tuple[list[Any], dict[int, Any]]:
        return [vars(place)[name] for place, name in self._places], dict(self._step_hooks)

    def set(self, hooked: bool) -> None:
        values, step_hooks = self._on if hooked else self._off
        for (place, name), value in zip(self._places, values, strict=True):
            setattr(place, name, value)
        self._step_hooks.clear()
        self._step_hooks.update(step_hooks)


class Side:
    """A model and its optimizer; both sides are alike."""

    def __init__(self, switch: Switch, *, hooked: bool) -> None:
        self._switch, self._hooked = switch, hooked
        switch.set(hooked)
        torch.manual_seed(0)
        self._model = DistributedDataParallel(Net())
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = {"input_ids": torch.randint(0, 256, (4, 64)), "attention_mask": torch.ones(4, 64).long()}

    def step(self) -> tuple[float, float]:
        """Wall and processor seconds."""
        self._switch.set(self._hooked)
        begun = time.perf_counter(), time.thread_time()
        for _ in range(2):
            self._model(**self._batch).sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun[0], time.thread_time() - begun[1]


def client_s() -> float:
    """Processor seconds of the client's thread so far."""
    thread = next(t for t in threading.enumerate() if t.name == "resihp-attach")
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) * 1e-9


def main() -> None:
    """`argv[1]`: pairs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    switch = Switch()
    off, on = Side(switch, hooked=False), Side(switch, hooked=True)
    wall, processor = [], []
    for pair in range(WARMUP + int(sys.argv[1])):
        if pair == WARMUP:
            began_s, client_began_s = time.perf_counter(), client_s()
        sides = (off, on) if pair % 2 else (on, off)
        taken = {side: side.step() for side in sides}
        if pair >= WARMUP:
            wall.append((taken[off][0], taken[on][0]))
            processor.append((taken[off][1], taken[on][1]))
    passed_s = time.perf_counter() - began_s
    share = (client_s() - client_began_s) / passed_s
    watch = resihp_attach.watch
    assert watch.client is not None
    counts = {"iterations": watch.recorder.iteration, "dropped": watch.client.num_dropped}
    print(json.dumps({"wall": wall, "processor": processor, "client_share": share, **counts}))


if __name__ == "__main__":
    main()

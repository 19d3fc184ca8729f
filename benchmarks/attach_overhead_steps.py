"""The measured process of `benchmarks.attach_overhead`: one loop whose steps go with and without hooks, in turns.

A round is two steps with hooks and two without, in an order drawn anew each time, so that nothing periodic meets one
kind more often. Prints JSON: seconds of each step per round, by wall clock and by the training thread's processor time,
and what the client's own thread took.

Each step has two micro-batches; after each the host waits, asleep, as if for a device. The client's thread, too, works
in steps with hooks only, at its own pace, so that all of the client is in the comparison.
"""

from __future__ import annotations

import json
import random
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
from resihp_attach.client import BEAT_S, Client

WARMUP, TINY_ROUNDS = 10, 300
DEVICE_S = 0.09
"""Played: how long the host waits for a device in each micro-batch."""
CACHE_BYTES = 1 << 26
"""More than the processor's caches hold."""
KINDS = ("off", "off again", "on", "on again")


class Net(nn.Module):
    """2 layers of width 128: 0.4 M parameters in 25 tensors."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)]
        self.embedding, self.layers = nn.Embedding(256, 128), nn.Sequential(*layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found: Tensor = self.layers(self.embedding(input_ids))
        return found


class Tiny(nn.Module):
    """Next to no work: what is left is what the hooks take."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.scale * 2.0


class Switch:
    """The places that the hooks patch: as torch has them, and as the client leaves them."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str]] = [
            (torch.autograd, "backward"),
            (DistributedDataParallel, "forward"),
            (DistributedDataParallel, "_sync_buffers"),
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
        """Torch's own functions back in place, or the client's."""
        values, step_hooks = self._on if hooked else self._off
        for (place, name), value in zip(self._places, values, strict=True):
            setattr(place, name, value)
        self._step_hooks.clear()
        self._step_hooks.update(step_hooks)


class Loop:
    """One model and its optimizer for both kinds of steps: where its tensors lie must not count as a difference."""

    def __init__(self, switch: Switch, net: nn.Module, *, device_s: float = 0.0, cold: bool = False) -> None:
        """`device_s`: slept after each micro-batch. `cold`: before every step the caches are filled with something
        else, as a real step does."""
        self._switch, self._device_s = switch, device_s
        self._other = torch.zeros(CACHE_BYTES, dtype=torch.uint8) if cold else None
        self._model = DistributedDataParallel(net)
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._batch = {"input_ids": torch.randint(0, 256, (1, 16)), "attention_mask": torch.ones(1, 16).long()}

    def step(self, *, hooked: bool) -> tuple[float, float]:
        """Wall and processor seconds."""
        if self._other is not None:
            self._other.add_(1)
        self._switch.set(hooked)
        begun = time.perf_counter(), time.thread_time()
        for _ in range(2):
            self._model(**self._batch).sum().backward()
            time.sleep(self._device_s)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return time.perf_counter() - begun[0], time.thread_time() - begun[1]


class Turns:
    """The client's thread keeps its pace, and does its work if the step is a watched one."""

    def __init__(self, client: Client) -> None:
        self.watched, self._turn = True, client._turn
        vars(client)["_turn"] = self._take

    def _take(self, is_last: bool) -> float:
        return self._turn(is_last) if self.watched or is_last else BEAT_S


def rounds(loop: Loop, turns: Turns, count: int, limit_s: float) -> dict[str, list[tuple[float, ...]]]:
    """Seconds of each of `KINDS`, by clock; until `count` rounds or the time are over."""
    draw, wall, processor = random.Random(0), [], []
    end_s = time.perf_counter() + limit_s
    for turn in range(WARMUP + count):
        order = draw.sample(KINDS, len(KINDS))
        taken = {}
        for kind in order:
            turns.watched = kind.startswith("on")
            taken[kind] = loop.step(hooked=turns.watched)
        if turn >= WARMUP:
            wall.append(tuple(taken[kind][0] for kind in KINDS))
            processor.append(tuple(taken[kind][1] for kind in KINDS))
        if time.perf_counter() > end_s:
            break
    return {"wall": wall, "processor": processor}


def client_s() -> float:
    """Processor seconds of the client's thread so far."""
    thread = next(t for t in threading.enumerate() if t.name == "resihp-attach")
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) * 1e-9


def main() -> None:
    """`argv[1]`: rounds; `argv[2]`: seconds that they may take."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    switch = Switch()
    watch = resihp_attach.watch
    watch.start()
    assert watch.client is not None
    turns = Turns(watch.client)
    tiny = rounds(Loop(switch, Tiny(), cold=True), turns, TINY_ROUNDS, 40.0)
    began_s, client_began_s = time.perf_counter(), client_s()
    found = rounds(Loop(switch, Net(), device_s=DEVICE_S), turns, int(sys.argv[1]), float(sys.argv[2]))
    share = 2 * (client_s() - client_began_s) / (time.perf_counter() - began_s)  # half of the steps are watched
    counts = {"iterations": watch.recorder.iteration, "dropped": watch.client.num_dropped}
    print(json.dumps({**found, "tiny": tiny["processor"], "client_share": share, **counts}))


if __name__ == "__main__":
    main()

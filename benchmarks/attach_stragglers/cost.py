"""What either watcher takes of the training thread: steps of next to no work, plain, with our hooks, with sections.

    python -m benchmarks.attach_stragglers.cost FOLDER ROUNDS

One process, two micro-batches a step, in an order drawn anew each round, caches emptied before each step. Prints JSON:
processor seconds of each kind per round.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.attach_overhead_steps import CACHE_BYTES, WARMUP, Switch, Tiny
from benchmarks.attach_stragglers.sections import detector

KINDS = ("plain", "hooks", "sections")


def main() -> None:
    folder, count = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    switch, sections = Switch(), detector(folder)
    model = DistributedDataParallel(Tiny())
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"input_ids": torch.zeros(1, 16).long(), "attention_mask": torch.ones(1, 16).long()}
    other, draw, rounds = torch.zeros(CACHE_BYTES, dtype=torch.uint8), random.Random(0), list[list[float]]()

    def section(kind: str, name: str) -> AbstractContextManager[Any]:
        if kind != "sections":
            return nullcontext()
        found: AbstractContextManager[Any] = sections.detection_section(name, profile_cuda=False)
        return found

    def step(kind: str) -> float:
        other.add_(1)
        switch.set(kind == "hooks")
        begun_s = time.thread_time()
        for _ in range(2):
            with section(kind, "forward"):
                loss = model(**batch).sum()
            with section(kind, "backward"):
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.thread_time() - begun_s

    for _ in range(WARMUP + count):
        taken = {kind: step(kind) for kind in draw.sample(KINDS, len(KINDS))}
        rounds.append([taken[kind] for kind in KINDS])
    print(json.dumps(rounds[WARMUP:]))


if __name__ == "__main__":
    main()

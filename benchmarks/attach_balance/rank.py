"""One rank of `benchmarks.attach_balance`, for torchrun: a framework's loop with rows dealt by measured speeds.

    python rank.py {ddp,fsdp2,hf} SPEED,SPEED,... {even,balanced,optimum} STEPS

Virtual clock: a micro-batch's forward and backward pass is padded, asleep, to `rows x UNIT_S / speed`. `balanced`: the
speeds that ranks tell each other are what the client measures of that, nothing given; `optimum`: the speeds are given
from the start. Rank 0 prints JSON: when iterations ended.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from resihp_attach import attach, watch
from resihp_attach.balance import BalancedBatchSampler, Speeds

ROWS, UNIT_S, WIDTH = 16, 0.1, 64
EVERY = 5
"""Iterations between two gatherings of speeds."""


class Pace:
    """Of this rank: stretches what it computes."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._ready_s = 0.0
        self.ends: list[float] = []

    def begin(self, rows: int) -> None:
        self._ready_s = time.monotonic() + rows * UNIT_S / self._speed

    def before_backward(self, loss: Any) -> Any:
        loss.register_hook(self._sleep)
        return loss

    def _sleep(self, gradient: Tensor) -> None:
        time.sleep(max(0.0, self._ready_s - time.monotonic()))


def gather(number: float) -> list[float]:
    everybody = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    everybody[dist.get_rank()] = number
    dist.all_reduce(everybody)
    return [float(value) for value in everybody]


def own_loop(framework: str, pace: Pace, every: int, start: tuple[float, ...], steps: int) -> tuple[float, ...]:
    """DDP or FSDP2; returns the speeds that were found."""
    world, net = dist.get_world_size(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model: Any = net
    if framework == "ddp":
        model = nn.parallel.DistributedDataParallel(net)
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    speeds = Speeds(world, gather, every=every)
    speeds.relative = start
    data = torch.randn(ROWS * steps, WIDTH, generator=torch.Generator().manual_seed(0))
    for part in BalancedBatchSampler(len(data), rows=ROWS, rank=dist.get_rank(), speeds=speeds):
        pace.begin(len(part))
        loss = model(data[part]).square().sum() * world / ROWS
        pace.before_backward(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        speeds.observe(watch.recorder.compute_s, rows=len(part))
        pace.ends.append(time.monotonic())
    return speeds.relative


def hugging_face(pace: Pace, every: int, start: tuple[float, ...], steps: int) -> tuple[float, ...]:
    """The Trainer with its own loop and default normalisation of the loss."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from resihp_attach.integrations.transformers import balance

    class Ends(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            pace.ends.append(time.monotonic())

    class Paced(Trainer):  # type: ignore[misc,unused-ignore]
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            pace.begin(len(inputs["input_ids"]))
            return pace.before_backward(super().compute_loss(model, inputs, *args, **kwargs))

    world = dist.get_world_size()
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    ids = torch.randint(1, 63, (ROWS * steps, 8), generator=torch.Generator().manual_seed(0))
    trainer = Paced(
        LlamaForCausalLM(config),
        TrainingArguments(
            output_dir="unused", max_steps=steps, per_device_train_batch_size=ROWS // world, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False, logging_strategy="no",
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[Ends()],
    )  # fmt: skip
    speeds = balance(trainer, every=every)
    speeds.relative = start
    trainer.train()
    return speeds.relative


def main() -> None:
    framework, speeds = sys.argv[1], tuple(map(float, sys.argv[2].split(",")))
    split, steps = sys.argv[3], int(sys.argv[4])
    every = EVERY if split == "balanced" else sys.maxsize
    start = speeds if split == "optimum" else (1.0,) * len(speeds)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    attach()
    dist.init_process_group("gloo")
    pace = Pace(speeds[dist.get_rank()])
    run = hugging_face if framework == "hf" else partial(own_loop, framework)
    found = run(pace, every, start, steps)
    if dist.get_rank() == 0:
        print(json.dumps({"ends": pace.ends, "speeds": found}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

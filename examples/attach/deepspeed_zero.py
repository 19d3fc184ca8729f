"""A DeepSpeed script (ZeRO 2, CPU) that knows nothing of ResiHP.

resihp run -- torchrun --nproc-per-node 4 examples/attach/deepspeed_zero.py
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits = self.head(self.layer(self.embedding(input_ids)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), input_ids.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": args.stage},
        },
    )
    draw = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(args.steps):
        length = int(torch.randint(16, 49, (), generator=draw))
        ids = torch.randint(0, 256, (4, length), generator=draw)
        loss = engine(input_ids=ids)
        engine.backward(loss)
        engine.step()
    dist.barrier()
    print(f"loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()

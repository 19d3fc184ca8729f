"""An FSDP2 script that knows nothing of ResiHP.

resihp run -- torchrun --nproc-per-node 4 examples/attach/fsdp2.py
"""

from __future__ import annotations

import argparse
import random

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self, width: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(num_layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=attention_mask == 0)
        logits: Tensor = self.head(hidden)
        return logits


def batch(draw: random.Random, rows: int = 4, longest: int = 48) -> dict[str, Tensor]:
    lengths = torch.tensor([draw.randint(longest // 3, longest) for _ in range(rows)])
    mask = (torch.arange(longest)[None, :] < lengths[:, None]).long()
    return {"input_ids": torch.randint(0, 256, (rows, longest)) * mask, "attention_mask": mask}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = Model()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(dist.get_rank())
    for _ in range(args.steps):
        inputs = batch(draw)
        logits = model(**inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), inputs["input_ids"].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    print(f"loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()

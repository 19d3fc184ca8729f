"""Six steps of one framework, with rows dealt by fixed speeds; rank 0 writes the parameters. For torchrun.

python balanced_rank.py {fsdp2,hf} SPEED,SPEED,... OUTPUT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

ROWS, STEPS = 16, 6


def fsdp2(speeds: tuple[float, ...]) -> list[Tensor]:
    from torch.distributed.fsdp import fully_shard

    from resihp_attach.balance import BalancedBatchSampler, Speeds

    data = torch.randn(ROWS * STEPS, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.randint(0, 8, (ROWS * STEPS,), generator=torch.Generator().manual_seed(2))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).double()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    world = dist.get_world_size()
    known = Speeds(world, lambda seconds: [seconds])
    known.relative = speeds
    for part in BalancedBatchSampler(len(data), rows=ROWS, rank=dist.get_rank(), speeds=known, seed=5):
        loss = nn.functional.cross_entropy(model(data[part]), labels[part], reduction="sum")
        (loss * world / ROWS).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]


def hf(speeds: tuple[float, ...]) -> list[Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from resihp_attach.integrations.transformers import balance

    world, accumulation = dist.get_world_size(), 2
    draw = torch.Generator().manual_seed(3)
    lengths = torch.randint(4, 12, (ROWS * STEPS * accumulation,), generator=draw).tolist()
    rows = [{"input_ids": torch.randint(1, 63, (n,), generator=draw)} for n in lengths]

    def collate(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"][:, :-1].flatten(0, 1)  # transformers' own loss goes through float32
        return nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir="unused", max_steps=STEPS, per_device_train_batch_size=ROWS // world, use_cpu=True,
        gradient_accumulation_steps=accumulation, report_to=[], save_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, learning_rate=1e-2, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(
        LlamaForCausalLM(config).double(),
        arguments,
        collate,
        rows,
        compute_loss_func=loss,  # type: ignore[arg-type]
    )
    known = balance(trainer, every=10_000)
    known.relative = speeds
    trainer.train()
    return list(trainer.model.parameters())


def main() -> None:
    framework, speeds, output = sys.argv[1], tuple(map(float, sys.argv[2].split(","))), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    parameters = {"fsdp2": fsdp2, "hf": hf}[framework](speeds)
    if dist.get_rank() == 0:
        torch.save([p.detach() for p in parameters], output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

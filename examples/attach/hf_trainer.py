"""A Hugging Face Trainer with ResiHP's callback: two lines more than without.

resihp run -- torchrun --nproc-per-node 4 examples/attach/hf_trainer.py
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from resihp_attach.integrations.transformers import ResiHPCallback  # 1


class Documents(Dataset[dict[str, torch.Tensor]]):
    """Random documents of varying lengths."""

    def __init__(self, count: int, longest: int = 64) -> None:
        draw = random.Random(0)
        self._lengths = [draw.randint(longest // 4, longest) for _ in range(count)]

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.randint(1, 255, (self._lengths[index],), generator=_seeded(index))}


def _seeded(index: int) -> torch.Generator:
    return torch.Generator().manual_seed(index)


def collate(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    rows = [item["input_ids"] for item in items]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--output", default="hf-out")
    args = parser.parse_args()
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    settings: dict[str, Any] = {
        "output_dir": args.output, "max_steps": args.steps, "per_device_train_batch_size": 4, "use_cpu": True,
        "gradient_accumulation_steps": 2, "logging_steps": 1, "report_to": [], "save_strategy": "no",
        "disable_tqdm": True, "remove_unused_columns": False,
    }  # fmt: skip
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=TrainingArguments(**settings),
        train_dataset=Documents(4 * 2 * 8 * args.steps),
        data_collator=collate,
        callbacks=[ResiHPCallback()],  # 2
    )
    trainer.train()


if __name__ == "__main__":
    main()

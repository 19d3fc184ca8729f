"""A Lightning module with ResiHP's callback: two lines more than without.

resihp run -- torchrun --nproc-per-node 4 examples/attach/lightning_ddp.py
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from resihp_attach.integrations.lightning import ResiHPCallback  # 1


class Classifier(lightning.LightningModule):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(256, 64), torch.nn.Linear(64, 4)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        found: Tensor = self.head((hidden * attention_mask[..., None]).sum(1))
        return found

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return torch.nn.functional.cross_entropy(self(batch["input_ids"], batch["attention_mask"]), batch["label"])

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.training_step(batch, index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def documents(count: int) -> list[Tensor]:
    """Of 12 to 48 tokens."""
    return [torch.randint(1, 256, (length,)) for length in torch.randint(12, 49, (count,)).tolist()]


def collate(items: list[Tensor]) -> dict[str, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(items, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "label": ids[:, 0] % 4}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    training: Any = DataLoader(documents(512), 4, collate_fn=collate)  # type: ignore[arg-type]
    validation: Any = DataLoader(documents(64), 16, collate_fn=collate)  # type: ignore[arg-type]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_steps=args.steps,
        val_check_interval=16,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ResiHPCallback()],  # 2
    )
    trainer.fit(Classifier(), training, validation)


if __name__ == "__main__":
    main()

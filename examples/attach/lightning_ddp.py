"""A Lightning module with ResiHP's callback: two lines more than without.

resihp run -- torchrun --nproc-per-node 4 examples/attach/lightning_ddp.py
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from resihp_attach.integrations.lightning import ResiHPCallback  # 1


class Classifier(lightning.LightningModule):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.net(x)
        return found

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    data = TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,)))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp" if world > 1 else "auto",
        max_steps=args.steps,
        val_check_interval=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ResiHPCallback()],  # 2
    )
    trainer.fit(Classifier(), DataLoader(data, 8), DataLoader(data, 64))


if __name__ == "__main__":
    main()

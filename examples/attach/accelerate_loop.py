"""A loop of one's own with accelerate: two lines more than without.

resihp run -- torchrun --nproc-per-node 4 examples/attach/accelerate_loop.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DataLoader

from resihp_attach import attach  # 1


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(256, 64), torch.nn.Linear(64, 4)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.layer(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        found: Tensor = self.head((hidden * attention_mask[..., None]).sum(1))
        return found


def documents(count: int) -> list[Tensor]:
    """Of 12 to 48 tokens."""
    return [torch.randint(1, 256, (length,)) for length in torch.randint(12, 49, (count,)).tolist()]


def collate(items: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(items, batch_first=True)
    return ids, (ids > 0).long(), ids[:, 0] % 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(documents(2 * 16 * args.steps), 4, collate_fn=collate)  # type: ignore[arg-type,var-annotated]
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    attach(model)  # 2
    batches = iter(data)
    for _ in range(2 * args.steps):
        ids, mask, label = next(batches)
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(ids, mask), label))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.end_training()


if __name__ == "__main__":
    main()

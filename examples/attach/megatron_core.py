"""A Megatron-core script (a small GPT, packed documents) that knows nothing of ResiHP.

resihp run -- torchrun --nproc-per-node 4 examples/attach/megatron_core.py
resihp run --axes pp=2,dp=2 -- torchrun --nproc-per-node 4 examples/attach/megatron_core.py --pp 2
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from torch import Tensor

LENGTH, VOCABULARY, MICRO_BATCHES = 64, 256, 2
Batch = dict[str, Tensor]


def batches(draw: random.Random) -> Iterator[Batch]:
    """Two rows each, filled with documents of varying length; no document sees another."""
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()
    while True:
        positions, documents = torch.zeros(2, LENGTH, dtype=torch.long), torch.zeros(2, LENGTH)
        for row in range(2):
            start = 0
            while start < LENGTH:
                end = min(LENGTH, start + draw.randint(8, 40))
                positions[row, start:end], documents[row, start:end] = torch.arange(end - start), start
                start = end
        apart = documents[:, None, :, None] != documents[:, None, None, :]
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
        batch = {"tokens": tokens, "labels": tokens, "position_ids": positions, "attention_mask": hidden | apart}
        yield {name: value.cuda() for name, value in batch.items()}


def forward(data: Iterator[Batch], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Batch]]]:
    batch = next(data)
    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return output, loss_of


def loss_of(output: Tensor) -> tuple[Tensor, Batch]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel(args.tp, args.pp)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=2, hidden_size=64, num_attention_heads=4, use_cpu_initialization=True, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=args.pp, hidden_dropout=0.0,
        attention_dropout=0.0, masked_softmax_fusion=False, bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )  # fmt: skip
    gpt = GPTModel(
        config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH, position_embedding_type="rope",
        pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
    ).cuda()  # fmt: skip
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), gpt)
    config.finalize_model_grads_func = finalize_model_grads
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=0.0), [model])
    forward_backward = get_forward_backward_func()
    data = batches(random.Random(parallel_state.get_data_parallel_rank()))
    losses: list[Batch] = []
    for _ in range(args.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward, data_iterator=data, model=[model], num_microbatches=MICRO_BATCHES,
            seq_length=LENGTH, micro_batch_size=2, forward_only=False,
        )  # fmt: skip
        optimizer.step()
    dist.barrier()
    if losses:
        print(f"loss {losses[-1]['loss'].item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

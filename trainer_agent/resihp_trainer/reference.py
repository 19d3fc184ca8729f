"""The undisturbed run: the same documents, model and optimizer in one process without any parallelism.

What every distributed run of the same job must end with, whatever happened to it (design: section 6.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from resihp_messages import JobSpec
from resihp_plan import ModelSpec, ParallelPlan, ReplicaPlan, StagePlan, layout
from resihp_trainer.corpus import Corpus, load_corpus
from resihp_trainer.data import Batch, documents
from resihp_trainer.model import MicroBatch, Stage, TensorParallel, linear_of
from resihp_trainer.optimizer import apply_step, clip_factor
from resihp_trainer.shards import ShardSet


@dataclass(frozen=True)
class Reference:
    """State after the last iteration, and the mean loss of every iteration."""

    held: ShardSet
    losses: tuple[float, ...]


def model_of(spec: JobSpec) -> ModelSpec:
    """The planner's view of the job's model."""
    return ModelSpec(**spec.model.model_dump())


def dtype_of(spec: JobSpec) -> torch.dtype:
    """The job's parameter dtype."""
    return {"float32": torch.float32, "float64": torch.float64}[spec.dtype]


def corpus_of(spec: JobSpec) -> Corpus:
    """The job's text. Raises ValueError, one line, if it cannot be used."""
    corpus = load_corpus(spec.data.path, text_field=spec.data.text_field, tokenizer=spec.data.tokenizer)
    largest = corpus.largest_token
    if largest >= spec.model.vocab_size:
        unit = "token" if spec.data.tokenizer else "byte"
        raise ValueError(f"model.vocab_size ({spec.model.vocab_size}): the data can hold {unit} {largest}")
    return corpus


def held_out_of(spec: JobSpec) -> Corpus | None:
    """The text of the job's evaluations; None if it has none. Raises ValueError like `corpus_of`."""
    if not spec.evaluation.every:
        return None
    data = spec.data.model_copy(update={"path": spec.evaluation.path})
    return corpus_of(spec.model_copy(update={"data": data}))


def single_device_plan(spec: JobSpec) -> ParallelPlan:
    """Everything on rank 0."""
    stage = StagePlan(0, spec.model.num_layers, (0,), (1,))
    return ParallelPlan(0, (ReplicaPlan((stage,), spec.batch.micro_batches),))


def train_reference(spec: JobSpec, progress: Callable[[int, float], None] | None = None) -> Reference:
    """Train the job undisturbed; `progress(iteration, mean loss)` after each one."""
    corpus, model, dtype = corpus_of(spec), model_of(spec), dtype_of(spec)
    held = ShardSet.initial(layout(single_device_plan(spec), model), 0, seed=spec.seed, dtype=dtype, tick=lambda: None)
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    linear = linear_of(None, autocast=model.autocast)
    stage = Stage(model, 0, model.num_layers, leaves, TensorParallel(), linear=linear, seed=spec.seed)
    losses = []
    for iteration in range(1, spec.iterations + 1):
        batch = documents(corpus, spec.batch, spec.seed, iteration)
        loss = 0.0
        for micro_batch in _packed(batch, spec.batch.tokens_per_micro_batch):
            out = stage.forward(micro_batch, None)
            torch.autograd.backward(out)
            loss += float(out.detach())
        losses.append(loss / batch.num_tokens)
        _step(held, leaves, batch.num_tokens, iteration, spec)
        if progress is not None:
            progress(iteration, losses[-1])
    return Reference(held, tuple(losses))


def _packed(batch: Batch, budget: int) -> Iterator[MicroBatch]:
    """Documents in their order, next fit. The loss is a sum, so packing changes no gradient."""
    current: list[int] = []
    for i, document in enumerate(batch.documents):
        if current and sum(batch.documents[j].length for j in current) + document.length > budget:
            yield batch.micro_batch(current)
            current = []
        current.append(i)
    yield batch.micro_batch(current)


def _step(held: ShardSet, leaves: dict[str, Tensor], tokens: int, iteration: int, spec: JobSpec) -> None:
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
    norm = float(torch.stack([torch.sum(g.double() ** 2) for g in gradients.values()]).sum().sqrt())
    factor = clip_factor(norm, tokens, spec.optimizer.clip_norm)
    apply_step(held, gradients, factor, iteration, spec.optimizer)
    for leaf in leaves.values():
        leaf.grad = None

"""Hugging Face Trainer: `Trainer(..., callbacks=[ResiHPCallback()])`, and `balance(trainer)` to move rows.

The compute comes from the generic hooks (a callback's own times would include the wait for other ranks); the callback
puts them in place and knows the step number of a resumed run, the loss and what is evaluation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from resihp_attach import attach, watch
from resihp_attach.balance import BalancedBatchSampler, LossDependsOnSplit, Speeds, hf_refusal
from resihp_attach.guard import guard


class ResiHPCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """One per Trainer."""

    def __init__(self) -> None:
        attach()

    @guard("transformers callback")
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        attach(model)
        watch.recorder.iteration = state.global_step

    @guard("transformers callback")
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            watch.loss(logs["loss"])


class _Observing(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Tells the speeds of this rank: not guarded, since all ranks must gather alike."""

    def __init__(self, speeds: Speeds, sampler: BalancedBatchSampler) -> None:
        self._speeds, self._sampler = speeds, sampler

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._speeds.observe(watch.recorder.compute_s, max(1, self._sampler.drawn))


def balance(trainer: Any, *, every: int = 20) -> Speeds:
    """Rows of each global micro-batch move from slow ranks to fast ones, from now on. Before `trainer.train()`.

    Speeds are this client's own measurements, told to all ranks once in `every` steps. The order of samples is that of
    the Trainer's seed, not its own sampler's. Raises `LossDependsOnSplit` with the reason if that would change the
    gradients, ValueError for settings with which the rows cannot be dealt here.
    """
    args = trainer.args
    if reason := hf_refusal(trainer):
        raise LossDependsOnSplit(reason)
    if args.remove_unused_columns:
        raise ValueError(
            "balance needs remove_unused_columns=False: batches are made from the dataset's rows as they are"
        )
    attach(trainer.model)
    speeds = Speeds(args.world_size, _gather, every=every)
    sampler = BalancedBatchSampler(
        len(trainer.train_dataset),
        rows=args.per_device_train_batch_size * args.world_size,
        rank=args.process_index,
        speeds=speeds,
        seed=args.seed,
    )
    loader: Any = DataLoader(
        trainer.train_dataset,
        batch_sampler=sampler,
        collate_fn=trainer.data_collator,
        num_workers=args.dataloader_num_workers,
    )
    trainer.get_train_dataloader = lambda: loader
    trainer.add_callback(_Observing(speeds, sampler))
    return speeds


def _gather(number: float) -> list[float]:
    if not dist.is_initialized():
        return [number]
    everybody = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    everybody[dist.get_rank()] = number
    dist.all_reduce(everybody)
    return [float(value) for value in everybody]

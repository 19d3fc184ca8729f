"""One replica under torchft: the same model, documents and optimizer, gradients by `Manager.allreduce`.

Runs in an environment of its own that has torchft. Prints one line per commit: `step seconds`, CLOCK_MONOTONIC.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from benchmarks.reference.model import PlainStage
from resihp_messages import JobSpec
from resihp_plan import ParallelPlan, ReplicaPlan, StagePlan, slice_batch
from resihp_trainer.data import documents
from resihp_trainer.reference import corpus_of, model_of


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--timeout", type=float, help="seconds, of collectives and quorum; default: torchft's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = JobSpec()
    model = model_of(spec)
    torch.manual_seed(spec.seed)  # the same parameters everywhere: no healing at the beginning
    module = PlainStage(model, 0, model.num_layers)
    optimizer = torch.optim.AdamW(module.parameters(), lr=spec.optimizer.lr)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    timeouts = {}
    if options.timeout is not None:
        bound = timedelta(seconds=options.timeout)
        timeouts = {"timeout": bound, "quorum_timeout": timedelta(seconds=10)}
    group = ProcessGroupGloo(timeout=timeouts.get("timeout", timedelta(seconds=60)))
    manager = Manager(
        pg=group,
        load_state_dict=lambda state: _load(module, optimizer, state),
        state_dict=lambda: {"module": module.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"replica{options.replica}",
        hostname="127.0.0.1",
        init_sync=False,
        **timeouts,
    )
    corpus = corpus_of(spec)
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        batch = documents(corpus, spec.batch, spec.seed, manager.current_step() + 1)
        # Which replica takes which documents is known once the quorum is; asking for it waits for the quorum.
        world, mine = manager.num_participants(), manager.participating_rank()
        stage = StagePlan(0, model.num_layers, (0,), (1,))
        share, extra = divmod(spec.batch.micro_batches, world)
        plan = ParallelPlan(0, tuple(ReplicaPlan((stage,), share + (r < extra)) for r in range(world)))
        sliced = slice_batch(batch.documents, plan, model, tokens_per_micro_batch=spec.batch.tokens_per_micro_batch)
        for unit in sliced.micro_batches[mine or 0]:
            micro = batch.micro_batch(unit)
            if micro.num_tokens:
                module(None, micro.lengths, micro.inputs, micro.targets, micro.positions).backward()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        flat = torch.cat([g.view(-1) for g in gradients])
        manager.allreduce(flat).wait()
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient)).div_(batch.num_tokens / world)
        if manager.should_commit():
            torch.nn.utils.clip_grad_norm_(module.parameters(), spec.optimizer.clip_norm)
            optimizer.step()
            print(manager.current_step(), time.monotonic(), world, flush=True)


def _load(module: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, object]) -> None:
    module.load_state_dict(state["module"])  # type: ignore[arg-type]
    optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]


if __name__ == "__main__":
    main()

"""One replica under torchft: the same model, documents and optimizer, gradients by `Manager.allreduce`.

Runs in an environment of its own that has torchft, started by `benchmarks.beside_torchft.job`.
"""

from __future__ import annotations

import torch

from benchmarks.beside_torchft import replica
from benchmarks.beside_torchft.commits import say
from benchmarks.reference.model import PlainStage
from resihp_messages import JobSpec
from resihp_plan import ParallelPlan, ReplicaPlan, StagePlan, slice_batch
from resihp_trainer.data import documents
from resihp_trainer.reference import corpus_of, model_of


def main() -> None:
    """Train until killed."""
    given = replica.arguments().parse_args()
    spec = JobSpec()
    model = model_of(spec)
    torch.manual_seed(spec.seed)
    module = PlainStage(model, 0, model.num_layers)
    optimizer = torch.optim.AdamW(module.parameters(), lr=spec.optimizer.lr)
    store = replica.store()
    manager = replica.manager(given, store.port, module, optimizer)
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
            say(given.rank, manager.current_step(), world)


if __name__ == "__main__":
    main()

"""One rank of the plain program: 1F1B over send and receive, one all-reduce of flat gradients, AdamW of torch.

Ranks are numbered as in the engine's plan: replica * PP + stage. A rank obeys its pipe: a number of iterations to run,
0 to end; it answers with the seconds that they took.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.reference.model import PlainStage
from resihp_messages import JobSpec
from resihp_plan import ParallelPlan, layout, slice_batch
from resihp_trainer.data import documents
from resihp_trainer.model import MicroBatch
from resihp_trainer.reference import corpus_of, model_of
from resihp_trainer.shards import ShardSet


class PlainRank:
    """State and loop of one rank."""

    def __init__(self, rank: int, spec: JobSpec, plan: ParallelPlan) -> None:
        self.rank, self.spec, self.plan, self.model = rank, spec, plan, model_of(spec)
        position = plan.position(rank)
        assert position is not None
        self.replica, self.stage, _ = position
        stages = plan.replicas[self.replica].stages
        here = stages[self.stage]
        self.before = stages[self.stage - 1].ranks[0] if self.stage else None
        self.after = stages[self.stage + 1].ranks[0] if self.stage + 1 < len(stages) else None
        self.module = PlainStage(self.model, here.layer_start, here.layer_stop)
        self._load(ShardSet.initial(layout(plan, self.model), rank, seed=spec.seed, dtype=torch.float32, tick=_nothing))
        groups = [dist.new_group([r.stages[s].ranks[0] for r in plan.replicas]) for s in range(len(stages))]
        self.replicas = groups[self.stage]
        self.corpus = corpus_of(spec)
        o = spec.optimizer
        norms = [p for n, p in self.module.named_parameters() if n.endswith("norm.weight")]
        others = [p for n, p in self.module.named_parameters() if not n.endswith("norm.weight")]
        self.optimizer = torch.optim.AdamW(
            [{"params": others, "weight_decay": o.weight_decay}, {"params": norms, "weight_decay": 0.0}],
            lr=o.lr,
            betas=(o.beta1, o.beta2),
            eps=o.eps,
        )
        self.iteration = 0
        self.loss = 0.0

    def _load(self, held: ShardSet) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(held.parameters[name])

    def step(self) -> None:
        """One iteration."""
        self.iteration += 1
        batch = documents(self.corpus, self.spec.batch, self.spec.seed, self.iteration)
        tokens = self.spec.batch.tokens_per_micro_batch
        sliced = slice_batch(batch.documents, self.plan, self.model, tokens_per_micro_batch=tokens).micro_batches
        units = [batch.micro_batch(unit) for unit in sliced[self.replica]]
        self._pipeline([u for u in units if u.num_tokens])
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([g.view(-1) for g in gradients])
        dist.all_reduce(flat, group=self.replicas)
        numbers = torch.tensor([float(flat.double().square().sum()) / len(self.plan.replicas), self.loss]).double()
        dist.all_reduce(numbers)
        norm = float(numbers[0]) ** 0.5 / batch.num_tokens
        flat *= min(1.0, self.spec.optimizer.clip_norm / (norm + 1e-6)) / batch.num_tokens
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = float(numbers[1]) / batch.num_tokens

    def _pipeline(self, units: list[MicroBatch]) -> None:
        """1F1B: warm up, then one forward and one backward in turn, then the rest."""
        self.loss = 0.0
        open_units: list[tuple[Tensor | None, Tensor]] = []
        self.sent: list[Any] = []
        num_stages = len(self.plan.replicas[0].stages)
        warm = min(num_stages - self.stage - 1, len(units))
        for unit in units[:warm]:
            open_units.append(self._forward(unit))
        for unit in units[warm:]:
            open_units.append(self._forward(unit))
            self._backward(*open_units.pop(0))
        while open_units:
            self._backward(*open_units.pop(0))
        for work in self.sent:
            work.wait()

    def _forward(self, unit: MicroBatch) -> tuple[Tensor | None, Tensor]:
        x = None
        if self.before is not None:
            x = torch.empty(unit.num_tokens, self.model.hidden)
            dist.recv(x, self.before)
            x.requires_grad_()
        out = self.module(x, unit.lengths, unit.inputs, unit.targets, unit.positions)
        if self.after is not None:
            self.sent.append(dist.isend(out.detach(), self.after))
        else:
            self.loss += float(out.detach())
        return x, out

    def _backward(self, x: Tensor | None, out: Tensor) -> None:
        if self.after is None:
            out.backward()  # type: ignore[no-untyped-call]
        else:
            gradient = torch.empty_like(out)
            dist.recv(gradient, self.after)
            out.backward(gradient)  # type: ignore[no-untyped-call]
        if x is not None:
            assert x.grad is not None
            assert self.before is not None
            self.sent.append(dist.isend(x.grad, self.before))


def _nothing() -> None:
    return None


def run(rank: int, port: int, spec_json: str, plan_data: dict[str, Any], orders: Connection) -> None:
    """Process entry point."""
    torch.set_num_threads(1)
    plan = ParallelPlan.from_dict(plan_data)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(plan.world))
    plain = PlainRank(rank, JobSpec.model_validate_json(spec_json), plan)
    orders.send(0.0)
    while count := orders.recv():
        start = time.perf_counter()
        for _ in range(count):
            plain.step()
        orders.send((time.perf_counter() - start, plain.loss))
    dist.destroy_process_group()

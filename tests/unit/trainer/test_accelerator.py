"""Tensors on another device than the host, as far as a machine without one can show: no operation of a stage meets a
tensor that was left behind (the meta device refuses to mix), and segments are timed by events. No GPU takes part."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from resihp_messages import JobSpec
from resihp_plan import OpKind, ParallelPlan, groups, layout, program
from resihp_trainer.accelerator import HOST, accelerator_of, communicator_of
from resihp_trainer.comm import GlooCommunicator, NcclCommunicator
from resihp_trainer.comm.streams import StreamWaits
from resihp_trainer.interpreter import Work
from resihp_trainer.model import Stage, TensorParallel, WeightGradients, accumulate, linear_of
from resihp_trainer.optimizer import apply_step
from resihp_trainer.pipeline import Pipeline
from resihp_trainer.reference import model_of
from resihp_trainer.shards import ShardSet
from support.fake_nccl import FakeDevice
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import HEALTHY, SPEC, replica, small_job, stage
from support.trainer_programs import batch, interpreter_of, units_of

META = torch.device("meta")
ALONE = ParallelPlan(1, (replica(1, stage(0, SPEC.num_layers, [0])),))


class Page:
    def tick(self) -> None: ...


def test_gloo_means_the_host() -> None:
    spec = small_job(1)
    assert accelerator_of(spec, 3) == HOST
    made = communicator_of(spec, host="127.0.0.1", page=Page(), accelerator=HOST)
    assert type(made) is GlooCommunicator
    assert made.streams is None
    made.settle(1)


def test_nccl_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, chosen = small_job(1, backend="nccl"), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="backend nccl: this build of torch sees no GPU on this machine"):
        accelerator_of(spec, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with pytest.raises(ValueError, match="worker 2 of a node with 2 GPUs"):
        accelerator_of(spec, 2)
    assert accelerator_of(spec, 1) == torch.device("cuda", 1)
    assert chosen == [1]
    made = communicator_of(spec, host="127.0.0.1", page=Page(), accelerator=torch.device("cuda", 1))
    assert isinstance(made, NcclCommunicator)
    assert made.streams is not None


def test_a_virtual_clock_is_not_for_devices_that_are_there() -> None:
    with pytest.raises(ValueError, match="not with backend nccl"):
        JobSpec.model_validate({"backend": "nccl", "clock": {"virtual": True}})


@pytest.mark.parametrize("change", [{}, {"recompute": True}, {"dropout": 0.1, "qkv_bias": True}, {"autocast": True}])
@pytest.mark.parametrize("splits", [False, True])
def test_nothing_of_an_iteration_is_left_on_the_host(change: dict[str, object], splits: bool) -> None:
    """Forward, backward and the optimizer's step on the meta device, where a stray host tensor is an error."""
    spec = small_job(1, model={**small_job(1).model.model_dump(), **change}, dtype="float32")
    model = model_of(spec)
    held = ShardSet.initial(layout(ALONE, model), 0, seed=1, dtype=torch.float32, tick=lambda: None, accelerator=META)
    assert {t.device for shard in held.shards.values() for t in shard.state} == {META}
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    later = WeightGradients() if splits else None
    linear = linear_of(later, autocast=model.autocast)
    whole = Stage(model, 0, model.num_layers, leaves, TensorParallel(), linear=linear, seed=1)
    loss = whole.forward(batch().micro_batch(range(len(batch().texts))).to(META), None)
    assert loss.device == META
    torch.autograd.backward(loss)
    if later is not None:
        accumulate(later.take())
    gradients: dict[str, Tensor] = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert gradients.keys() == leaves.keys()
    assert {g.device for g in gradients.values()} == {META}
    apply_step(held, gradients, 0.5, 1, spec.optimizer)


def test_activations_arrive_on_the_device() -> None:
    sent: list[Tensor] = []

    class End:
        ranks = (0, 2)

        def broadcast(self, tensor: Tensor, src: int) -> End:
            sent.append(tensor)
            return self

        def wait(self) -> None: ...

    plan = ParallelPlan(1, (replica(2, stage(0, 2, [0]), stage(2, 4, [2])),))
    names = {spec.name: End() for spec in groups(plan, SPEC) if spec.kind == "edge"}
    ends = Pipeline(plan, 2, names, None, SPEC.hidden, torch.float32, META)  # type: ignore[arg-type]
    receive = next(op for op in program(plan).ops[2] if op.kind is OpKind.RECV_ACT)
    assert receive.peer is not None
    assert ends.receive(5, receive.place, receive.peer).device == META
    assert [t.device for t in sent] == [META]


def test_segments_are_timed_by_events_that_nobody_waits_for() -> None:
    """A fake stream on which every mark is a millisecond after the one before: a segment lasts one, less its waits."""
    plan = HEALTHY.with_epoch(1)

    def run(rank: int, built: Mapping[str, ThreadGroup]) -> tuple[Work, Work]:
        interpreter, _ = interpreter_of(plan, rank, built)
        device = FakeDevice()
        interpreter.streams = StreamWaits(device.mark, lambda kind, seconds: None)
        work = interpreter.run(program(plan).ops[rank], units_of(plan, rank, SPEC), lambda: None)
        before = Work(list(work.segments))
        device.reached = device.now
        work.resolve()
        work.resolve()  # a second time changes nothing
        return before, work

    for before, work in run_ranks(groups(plan, SPEC), run).values():
        assert {s.seconds for s in before.segments} == {0.0}
        assert {round(s.seconds, 6) for s in work.segments} == {0.001}
        assert [s[:4] for s in before.segments] == [s[:4] for s in work.segments]


def test_waits_inside_a_segment_are_not_its_own() -> None:
    device = FakeDevice()
    waits = StreamWaits(device.mark, lambda kind, seconds: None)
    waits.around("tp", lambda: None)  # before it
    end = waits.begin()
    for _ in range(2):
        waits.around("tp", lambda: setattr(device, "now", device.now + 4.0))
    seconds = end()
    device.reached = device.now
    assert seconds() == pytest.approx((5 * 1.0 + 2 * 4.0 - 2 * 5.0) / 1000.0)

"""From a plan to a running epoch: rebuild the groups, join, settle, move state, be ready (docs/protocol.md)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from resihp_messages import FaultPoint
from resihp_messages.link import InstallPlan
from resihp_messages.page import PageState
from resihp_messages.placement import node_of
from resihp_plan import (
    Bucket,
    Layout,
    Op,
    ParallelPlan,
    Schedule,
    gradient_buckets,
    groups,
    guardians,
    layout,
    needed,
    program,
)
from resihp_plan import group_name as group_name_of
from resihp_plan.groups import GroupKind
from resihp_trainer.comm.port import EpochGroups, Group
from resihp_trainer.context import Context
from resihp_trainer.device import VirtualClock
from resihp_trainer.digests import Fingerprints
from resihp_trainer.faults import Faults
from resihp_trainer.interpreter import Interpreter
from resihp_trainer.join import Header, JoinRefused, StateLost, conclude
from resihp_trainer.links import VirtualLinks
from resihp_trainer.model import Stage, TensorParallel, WeightGradients, linear_of
from resihp_trainer.moves import Moved, move_state
from resihp_trainer.pipeline import Pipeline
from resihp_trainer.recover import recover, require_fresh_folder
from resihp_trainer.saving import Saver
from resihp_trainer.shards import ShardSet
from resihp_trainer.state import TrainingState


@dataclass(frozen=True)
class ActiveEpoch:
    """A verified epoch that this rank works in. `interpreter` is None on standby ranks."""

    command: InstallPlan
    plan: ParallelPlan
    groups: EpochGroups
    held: ShardSet
    interpreter: Interpreter | None
    ops: tuple[Op, ...]
    buckets: tuple[Bucket, ...]
    """Those of this rank."""
    fingerprints: Fingerprints
    rebuild_s: float
    """To the end of the first collective of the new world."""
    move_s: float
    """From there to the barrier, the rest of the groups included."""
    bytes_received: int
    installed_at: float

    @property
    def world(self) -> Group:
        return self.groups["world"]


def install(
    context: Context,
    state: TrainingState,
    saver: Saver,
    command: InstallPlan,
    plan: ParallelPlan,
    on_built: Callable[[EpochGroups], None],
    on_joined: Callable[[], None],
) -> ActiveEpoch:
    """Install an accepted plan. `on_built` gets the groups as soon as they exist, for whoever has to retire them;
    `on_joined` is called after the first collective of the new world.

    Raises `EpochAborted`, `CommunicationFailed`, or `JoinRefused` or `StateGone`, which every member then raises. The
    state is left as before, as after the settling or as after the return to a snapshot, and all are right.
    """
    clock, page, rank = context.clock, context.page, context.rank
    start = clock()
    page.place(epoch=plan.epoch, iteration=state.committed, state=PageState.REBUILDING)
    nodes = node_of(command.placement)
    target = layout(plan, context.model)
    guards = needed(guardians(plan, nodes), target) if saver.takes_copies else {}
    begun = context.communicator.begin(
        plan.epoch, groups(plan, context.model, guards), rank, command.store_address, command.reconfiguration_id
    )
    on_built(begun)
    world = begun["world"]
    headers = _exchange(world, state.header(plan))
    on_joined()
    rebuilt = clock()
    page.place(epoch=plan.epoch, iteration=state.committed, state=PageState.MOVING)
    context.faults.strike(FaultPoint.MOVE, state.committed)
    moved = _bring_state(context, state, saver, world, headers, target, nodes, command.back_to)
    built = context.communicator.complete(begun)  # the other groups were built while the state moved
    _ready(context.faults, world, state, moved, plan.epoch)
    saver.enter(target, guards, built)
    done = clock()
    interpreter = _interpreter(context, saver, plan, target, built, moved.held)
    buckets = tuple(b for b in gradient_buckets(plan, context.model) if rank in b.owners)
    return ActiveEpoch(
        command=command,
        plan=plan,
        groups=built,
        held=moved.held,
        interpreter=interpreter,
        ops=program(plan).ops[rank],
        buckets=buckets,
        fingerprints=Fingerprints.of(moved.held, buckets),
        rebuild_s=rebuilt - start,
        move_s=done - rebuilt,
        bytes_received=moved.bytes_received,
        installed_at=done,
    )


def _bring_state(
    context: Context,
    state: TrainingState,
    saver: Saver,
    world: Group,
    headers: Mapping[int, Header],
    target: Layout,
    nodes: Mapping[int, str],
    back_to: int | None,
) -> Moved:
    """Settle, and build this rank's shards of the new layout: from those that hold the newest state, else from what
    copies there are, else (before the first iteration) from the seed or the checkpoint that the job resumes.

    `back_to`: the newest state is not trusted, because replicas differ; from copies that are not newer than this.
    """
    rank, tick = context.rank, context.page.tick
    checkpoints = context.spec.checkpoints
    try:
        conclusion = conclude(headers, target.plan, target, context.model, state.known, nodes)
    except StateLost as lost:
        return recover(context, state, saver, world, target, nodes, what=str(lost), newest=back_to)
    base = state.settle(rank, conclusion)
    if back_to is not None and conclusion.moves is not None:
        state.dispute(base)
        return recover(context, state, saver, world, target, nodes, what="replicas differ", newest=back_to)
    if conclusion.moves is not None:
        return move_state(base, target, conclusion.moves, world, rank, context.dtype, tick, context.accelerator)
    if checkpoints.resume:
        what = f"nothing to resume in {checkpoints.path}"
        return recover(context, state, saver, world, target, nodes, what=what, resume=True)
    require_fresh_folder(checkpoints.path)
    fresh = ShardSet.initial(
        target, rank, seed=context.spec.seed, dtype=context.dtype, tick=tick, accelerator=context.accelerator
    )
    return Moved(fresh, 0, True)


def _exchange(world: Group, header: Header) -> dict[int, Header]:
    mine = torch.frombuffer(bytearray(header.pack()), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in world.ranks]
    world.all_gather(parts, mine).wait()
    return {rank: Header.unpack(part.numpy().tobytes()) for rank, part in zip(world.ranks, parts, strict=True)}


def _ready(faults: Faults, world: Group, state: TrainingState, moved: Moved, epoch: int) -> None:
    """The barrier behind which everybody holds the new layout.

    This rank holds it from now on, whether it sees the end of the barrier or not: others may have seen it.
    """
    if moved.is_verified:
        state.holdings[epoch] = moved.held
    verified = torch.tensor([1.0 if moved.is_verified else 0.0], dtype=torch.float64)
    pending = world.all_reduce(verified, "min")
    faults.strike(FaultPoint.READY, state.committed)
    pending.wait()
    if not verified.item():
        state.holdings.pop(epoch, None)
        raise JoinRefused("a state packet does not have the digest that its sender computed")


def _interpreter(
    context: Context, saver: Saver, plan: ParallelPlan, target: Layout, built: EpochGroups, held: ShardSet
) -> Interpreter | None:
    position = plan.position(context.rank)
    if position is None:
        return None
    replica, stage_index, _ = position
    stage = plan.replicas[replica].stages[stage_index]
    tp_group = built[group_name_of(GroupKind.TP, stage.ranks)] if len(stage.ranks) > 1 else None
    leaves = {name: p.detach().requires_grad_() for name, p in held.parameters.items()}
    later = WeightGradients() if plan.schedule is Schedule.ZB_H1 else None
    model = Stage(
        context.model,
        stage.layer_start,
        stage.layer_stop,
        leaves,
        TensorParallel(tp_group, context.page.tick),
        held.vocab_start,
        linear_of(later, autocast=context.model.autocast),
        context.spec.seed,
    )

    def pause(seconds: float) -> None:
        context.communicator.check(plan.epoch)
        context.page.tick()
        time.sleep(seconds)

    def operation() -> None:
        context.page.operation()
        if saver.is_copying:
            saver.poll()

    links = VirtualLinks.of(context.spec.clock, context.links, context.model, context.rank, pause)
    pipeline = Pipeline(
        plan, context.rank, built, tp_group, context.model.hidden, context.dtype, context.accelerator, links
    )
    virtual = VirtualClock.of(context.spec.clock, context.device, context.model, plan, context.rank, pause)
    return Interpreter(
        model,
        pipeline,
        leaves,
        context.waits,
        operation,
        context.clock,
        later,
        virtual,
        context.communicator.streams,
    )

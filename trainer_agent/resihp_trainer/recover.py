"""Bring the state back when its holders do not have all of it: from copies in memory, or from disk.

All members of the epoch come here together, because all conclude it from the same headers (docs/protocol.md, claim 5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, wait
from pathlib import Path
from typing import TypeVar

from resihp_plan import Layout
from resihp_trainer.catalogue import Catalogue, Copies, Recovery, StateGone, choose, exchange
from resihp_trainer.checkpoint import available, check_files, check_fits, folder_of, put_aside, read_into, read_manifest
from resihp_trainer.comm.port import Group
from resihp_trainer.context import Context
from resihp_trainer.copies import collect
from resihp_trainer.moves import Moved, Source, move_state
from resihp_trainer.saving import Saver
from resihp_trainer.shards import ShardSet
from resihp_trainer.snapshots import PAUSE_S
from resihp_trainer.state import Setback, TrainingState

T = TypeVar("T")


def require_fresh_folder(path: str | None) -> None:
    """A job that begins anew does not mix its checkpoints with those of another run. Raises `StateGone`."""
    found = available(Path(path)) if path is not None else ()
    if found:
        raise StateGone(f"{found[-1][1]}: a checkpoint of an earlier run; resume it, or use another folder")


def recover(
    context: Context,
    state: TrainingState,
    saver: Saver,
    world: Group,
    target: Layout,
    node_of: Mapping[int, str] | None,
    *,
    what: str,
    resume: bool = False,
    newest: int | None = None,
) -> Moved:
    """Agree on the newest complete state, go back to it, and build this rank's shards of `target` from it.

    `resume`: the job begins, only checkpoints count. `newest`: what is newer than this iteration is not trusted; if
    there is nothing else, the job goes on with it all the same. Raises `StateGone`, and what `Pending.wait` raises.
    """
    mine = _catalogue(context, state, saver, world)
    found = choose(
        exchange(world, mine, context.rank), target, context.model, node_of, what=what, resume=resume, newest=newest
    )
    if newest is not None and found.iteration <= newest and context.rank == min(world.ranks):
        _put_aside(context, found.iteration)
    if found.source == "checkpoint":
        return _from_disk(context, state, saver, target, found)
    assert found.base is not None
    assert found.applied is not None
    assert found.moves is not None
    source = _source(state, saver, found)
    saver.snapshots.forget_after(found.iteration)
    base = found.base.plan.epoch if found.source == "live" else None
    state.go_back(found.applied, Setback(found.lost, found.source), keep=base)
    return move_state(source, target, found.moves, world, context.rank, context.dtype, context.page.tick)


def _source(state: TrainingState, saver: Saver, found: Recovery) -> Source | None:
    """What this rank has of the chosen state."""
    assert found.base is not None
    plan, sets = found.base.plan, []
    live = state.holdings.get(plan.epoch)
    if live is not None and state.committed == found.iteration and live.layout.plan.digest == plan.digest:
        sets.append(live)
    snapshot = saver.snapshots.kept.get((found.iteration, plan.epoch))
    if snapshot is not None and snapshot.layout.plan.digest == plan.digest:
        sets += snapshot.shards.values()
    return collect(sets)


def _catalogue(context: Context, state: TrainingState, saver: Saver, world: Group) -> Catalogue:
    for snapshot in saver.snapshots.kept.values():
        _aside(context, saver.writer, snapshot.drop_spoilt)
    copies = [Copies(s.layout.plan, s.applied, tuple(sorted(s.copies)), False) for s in saver.snapshots.kept.values()]
    if state.applied is not None:
        copies += [Copies(h.layout.plan, state.applied, (context.rank,), True) for h in state.holdings.values()]
    good, damaged = [], []
    path = context.spec.checkpoints.path
    for iteration, folder in available(Path(path)) if path is not None else ():
        try:
            _inspect(context, saver.writer, folder, world)
        except (ValueError, OSError) as error:
            damaged.append((iteration, str(error)[:500]))
        else:
            good.append(iteration)
    reached = state.committed + state.setback.lost
    return Catalogue(reached, tuple(c for c in copies if c.ranks), tuple(good), tuple(damaged))


def _inspect(context: Context, thread: Executor, folder: Path, world: Group) -> None:
    """The members share the work of computing the checksums; a damaged file that one finds, all hear of."""
    manifest = read_manifest(folder)
    check_fits(folder, manifest, context.model, seed=context.spec.seed, dtype=context.dtype)
    mine = sorted(manifest.files)[world.ranks.index(context.rank) :: len(world.ranks)]
    _aside(context, thread, lambda: check_files(folder, manifest, mine))


def _put_aside(context: Context, iteration: int) -> None:
    if (path := context.spec.checkpoints.path) is not None:
        try:
            put_aside(Path(path), iteration)
        except OSError as error:  # they are replaced when their iterations are committed again
            print(f"checkpoints newer than iteration {iteration} stay: {error}", file=sys.stderr, flush=True)


def _from_disk(context: Context, state: TrainingState, saver: Saver, target: Layout, found: Recovery) -> Moved:
    assert context.spec.checkpoints.path is not None
    folder = folder_of(Path(context.spec.checkpoints.path), found.iteration)
    held = ShardSet.empty(target, context.rank, context.dtype, accelerator=context.accelerator)
    saver.snapshots.forget_after(found.iteration)
    try:
        manifest = read_manifest(folder)
        if manifest.applied.iteration > context.spec.iterations:
            raise StateGone(
                f"{folder}: has {manifest.applied.iteration} iterations, the job only {context.spec.iterations}"
            )
        num_bytes = read_into(held, folder, manifest, context.page.tick)
    except (ValueError, OSError) as error:  # it was good when it was inspected: the others hear of it by the barrier
        print(f"checkpoint {folder}: {error}", file=sys.stderr, flush=True)
        return Moved(held, 0, False)
    state.go_back(manifest.applied, Setback(found.lost, "checkpoint"))
    return Moved(held, num_bytes, True)


def _aside(context: Context, thread: Executor, work: Callable[[], T]) -> T:
    """Run `work` in another thread and show life meanwhile."""
    future = thread.submit(work)
    while not wait([future], PAUSE_S).done:
        context.page.tick()
    return future.result()

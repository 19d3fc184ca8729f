"""Hypothesis strategies and hand-made examples of models and plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import assume
from hypothesis import strategies as st

from resihp_plan import InvalidPlan, Migration, ModelSpec, ParallelPlan, ReplicaPlan, Schedule, StagePlan, validate

DEMO_MODEL = ModelSpec()
"""8 layers, 4 key/value head groups."""


def stage(start: int, stop: int, *ranks: int, weights: tuple[int, ...] | None = None) -> StagePlan:
    return StagePlan(start, stop, ranks, weights or (1,) * len(ranks))


def demo_plan(epoch: int = 1) -> ParallelPlan:
    """TP 2 x PP 2 x DP 2 of `DEMO_MODEL`, 4+4 micro-batches."""
    return ParallelPlan(
        epoch,
        (
            ReplicaPlan((stage(0, 4, 0, 1), stage(4, 8, 2, 3)), 4),
            ReplicaPlan((stage(0, 4, 4, 5), stage(4, 8, 6, 7)), 4),
        ),
    )


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Small decoders with odd sizes."""
    kv = draw(st.integers(1, 6))
    heads = kv * draw(st.integers(1, 2))
    mlp_block, vocab_block = draw(st.sampled_from([1, 3, 4])), draw(st.sampled_from([1, 5, 8]))
    return ModelSpec(
        num_layers=draw(st.integers(1, 8)),
        hidden=heads * draw(st.sampled_from([2, 4])),
        num_heads=heads,
        num_kv_heads=kv,
        ffn_hidden=mlp_block * draw(st.integers(1, 12)),
        mlp_block=mlp_block,
        vocab_size=vocab_block * draw(st.integers(1, 9)),
        vocab_block=vocab_block,
        qkv_bias=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
    )


@st.composite
def plans(draw: st.DrawFn, model: ModelSpec, *, max_replicas: int = 3, max_rank: int = 40) -> ParallelPlan:
    """Valid plans of `model`: unequal replicas, stages, degrees and weights, ranks in any order, standby ranks."""
    free = iter(draw(st.permutations(range(max_rank))))
    replicas = []
    for _ in range(draw(st.integers(1, max_replicas))):
        num_stages = draw(st.integers(1, min(3, model.num_layers)))
        cuts = draw(
            st.lists(
                st.integers(1, max(1, model.num_layers - 1)),
                min_size=num_stages - 1,
                max_size=num_stages - 1,
                unique=True,
            )
        )
        bounds = [0, *sorted(cuts), model.num_layers]
        stages = tuple(_stage(draw, model, a, b, free) for a, b in itertools.pairwise(bounds))
        replicas.append(ReplicaPlan(stages, draw(st.integers(0, 5))))
    plan = ParallelPlan(
        epoch=draw(st.integers(0, 1000)),
        replicas=tuple(replicas),
        standby=tuple(sorted(itertools.islice(free, draw(st.integers(0, 2))))),
        schedule=draw(st.sampled_from(Schedule)),
    )
    try:
        validate(plan, model)
    except InvalidPlan:
        assume(False)  # weights that leave somebody without a unit, or no micro-batch at all
    return plan


@st.composite
def migrating_plans(draw: st.DrawFn) -> ParallelPlan:
    """Two to four replicas with the same layer ranges, any degrees, any units executed by any other replica."""
    num_stages, num_replicas = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    cuts = draw(st.lists(st.integers(1, 3), min_size=num_stages, max_size=num_stages))
    bounds = [0, *itertools.accumulate(cuts)]
    free = itertools.count()
    counts = [draw(st.integers(0, 5)) for _ in range(num_replicas)]
    assume(sum(counts))
    replicas = tuple(
        ReplicaPlan(
            tuple(stage(a, b, *itertools.islice(free, draw(st.integers(1, 3)))) for a, b in itertools.pairwise(bounds)),
            count,
        )
        for count in counts
    )
    units = [(a, s, m) for a, n in enumerate(counts) for s in range(num_stages) for m in range(n)]
    chosen = draw(st.lists(st.sampled_from(units), unique=True, max_size=12))
    migrations = tuple(
        Migration(a, s, m, (a + draw(st.integers(1, num_replicas - 1))) % num_replicas) for a, s, m in chosen
    )
    plan = ParallelPlan(1, replicas, migrations=migrations, schedule=draw(st.sampled_from(Schedule)))
    validate(plan, ModelSpec(num_layers=bounds[-1]))
    return plan


def _stage(draw: st.DrawFn, model: ModelSpec, start: int, stop: int, free: Iterator[int]) -> StagePlan:
    vocabulary = model.vocab_size // model.vocab_block
    degree = draw(st.integers(1, min(4, model.num_kv_heads, vocabulary)))
    even = st.just((1,) * degree)
    weights = draw(st.one_of(even, st.lists(st.integers(1, 4), min_size=degree, max_size=degree).map(tuple)))
    return StagePlan(start, stop, tuple(itertools.islice(free, degree)), weights)

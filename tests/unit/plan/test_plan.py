"""Plans: digest, dictionary form, positions, rules."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resihp_messages import ModelConfig
from resihp_plan import (
    Device,
    InvalidPlan,
    MemoryModel,
    Migration,
    ModelSpec,
    ParallelPlan,
    ReplicaPlan,
    Schedule,
    StagePlan,
    layout,
    validate,
)
from resihp_plan.cluster import Cluster
from resihp_plan.compact import compact, expanded
from resihp_plan.plan import known_speeds
from support.plans import DEMO_MODEL, demo_plan, models, plans, stage


def test_model_spec_equals_the_wire_contract() -> None:
    """The job file's model and the planner's model have the same fields and defaults."""
    wire = ModelConfig()
    spec = ModelSpec()
    assert set(ModelConfig.model_fields) == {f.name for f in dataclasses.fields(ModelSpec)}
    assert wire.model_dump() == dataclasses.asdict(spec)
    assert ModelSpec(**ModelConfig(num_layers=3, hidden=64).model_dump()).head_dim == 8


@settings(max_examples=40)
@given(st.data())
def test_dictionary_form_is_an_inverse_and_the_digest_survives_it(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(models())))
    copy = ParallelPlan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert copy == plan
    assert copy.digest == plan.digest
    assert len(plan.digest) == 64
    small = json.loads(json.dumps(compact(plan.to_dict())))
    assert expanded(small) == json.loads(json.dumps(plan.to_dict()))
    assert ParallelPlan.from_dict(small) == plan


def test_digest_is_stable_across_versions() -> None:
    """Ranks, scheduler and database must agree, also across releases: a changed canonical form is a contract change."""
    assert demo_plan().digest == "0e2989a912a1c09acf3e745e9160c04164bf6413b7e1371c4c9713b6e2216015"


def _mutations(plan: ParallelPlan) -> list[ParallelPlan]:
    first = plan.replicas[0]
    st0 = first.stages[0]

    def with_stage(changed: StagePlan) -> ParallelPlan:
        replica = dataclasses.replace(first, stages=(changed, *first.stages[1:]))
        return dataclasses.replace(plan, replicas=(replica, *plan.replicas[1:]))

    return [
        plan.with_epoch(plan.epoch + 1),
        dataclasses.replace(plan, standby=(*plan.standby, 99)),
        dataclasses.replace(plan, replicas=plan.replicas[::-1]),
        dataclasses.replace(plan, migrations=(Migration(0, 0, 0, 1),)),
        dataclasses.replace(plan, replicas=(dataclasses.replace(first, num_micro_batches=5), *plan.replicas[1:])),
        with_stage(dataclasses.replace(st0, ranks=st0.ranks[::-1])),
        with_stage(dataclasses.replace(st0, weights=(2, 1))),
        with_stage(dataclasses.replace(st0, layer_stop=st0.layer_stop - 1)),
    ]


def test_digest_is_sensitive_to_every_field() -> None:
    digests = [demo_plan().digest, *(p.digest for p in _mutations(demo_plan()))]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"epoch": 1},
        {"epoch": "1", "replicas": []},
        {"epoch": 1.5, "replicas": []},
        {"epoch": True, "replicas": []},
        {"epoch": 1, "replicas": [{"num_micro_batches": 1, "stages": [{"layers": [0, 7.9], "ranks": [0]}]}]},
        {"epoch": 1, "replicas": [{"stages": []}]},
        {"epoch": 1, "replicas": [{"num_micro_batches": 1, "stages": [{"layers": [0], "ranks": [0]}]}]},
        {"epoch": 1, "replicas": [{"num_micro_batches": 1, "stages": [{"layers": [0, 1], "ranks": None}]}]},
        {"epoch": 1, "replicas": 3},
        {"epoch": 1, "replicas": [], "schedule": "gpipe"},
        {"epoch": 1, "replicas": [], "migrations": [[1, 2]]},
        {"compact": 3},
        {"compact": "no base64"},
        {"compact": "aGVsbG8="},
        {"compact": compact(demo_plan().to_dict())["compact"][:-8]},
        {"compact": base64.b64encode(zlib.compress(b"{}")).decode()},
        [1],
        None,
    ],
)
def test_from_dict_refuses_what_is_not_a_plan(broken: Any) -> None:
    with pytest.raises(InvalidPlan, match="not a plan"):
        ParallelPlan.from_dict(broken)


def test_missing_weights_mean_even() -> None:
    data = {"epoch": 1, "replicas": [{"num_micro_batches": 1, "stages": [{"layers": [0, 8], "ranks": [1, 2]}]}]}
    assert ParallelPlan.from_dict(data).replicas[0].stages[0].weights == (1, 1)


@settings(max_examples=40)
@given(st.data())
def test_positions_and_world(data: st.DataObject) -> None:
    plan = data.draw(plans(data.draw(models())))
    assert plan.world == tuple(sorted({*plan.active, *plan.standby}))
    for rank in plan.active:
        position = plan.position(rank)
        assert position is not None
        a, s, t = position
        assert plan.replicas[a].stages[s].ranks[t] == rank
    assert all(plan.position(rank) is None for rank in (*plan.standby, 12345))


def _plan(*stages: StagePlan, count: int = 8, **fields: Any) -> ParallelPlan:
    return ParallelPlan(**{"epoch": 1, "replicas": (ReplicaPlan(stages, count),), **fields})


def _pair(*migrations: Migration, cut: int = 4) -> ParallelPlan:
    first, second = (stage(0, 4, 0), stage(4, 8, 1)), (stage(0, cut, 2), stage(cut, 8, 3))
    return ParallelPlan(1, (ReplicaPlan(first, 4), ReplicaPlan(second, 4)), migrations=migrations)


RULES = [
    (_plan(stage(0, 8, 0), epoch=-1), "epoch: must not be negative, got -1"),
    (_plan(replicas=()), "replicas: a plan needs at least one"),
    (_plan(), r"layers: R0 has \[\].*num_layers = 8"),
    (_plan(stage(0, 4, 0)), r"layers: .*must end at num_layers = 8"),
    (_plan(stage(0, 4, 0), stage(5, 8, 1)), r"layers: R0 has \[\(0, 4\), \(5, 8\)\]"),
    (_plan(stage(0, 5, 0), stage(4, 8, 1)), "layers: .*follow each other"),
    (_plan(stage(0, 4, 0), stage(4, 4, 1), stage(4, 8, 2)), "layers: .*not be empty"),
    (_plan(stage(0, 9, 0)), "layers: .*num_layers = 8"),
    (_plan(StagePlan(0, 8, (), ())), "ranks: R0.S0 has none"),
    (_plan(stage(0, 8, 0, 0)), "ranks: rank 0 is used 2 times"),
    (_plan(stage(0, 8, 0), standby=(0,)), "ranks: rank 0 is used 2 times"),
    (_plan(stage(0, 8, -1)), "ranks: must not be negative, got -1"),
    (_plan(stage(0, 8, 0, 7)), r"ranks: rank 7 is not alive"),
    (_plan(stage(0, 8, 0), standby=(7,)), r"ranks: rank 7 is not alive"),
    (_plan(StagePlan(0, 8, (0, 1), (1,))), "weights: R0.S0 has 1 for 2 ranks"),
    (_plan(stage(0, 8, 0, 1, weights=(2, -1))), "weights: .*none may be negative"),
    (_plan(stage(0, 8, 0, 1, weights=(0, 0))), "weights: .*sum must be positive"),
    (_plan(stage(0, 8, 0, 1, weights=(1, 0))), "shares: rank 1 of R0.S0 gets none of 22 mlp units"),
    (_plan(stage(0, 8, 0, 1, weights=(50, 1))), "shares: rank 1 of R0.S0 gets none of 22 mlp units"),
    (_plan(stage(0, 8, 0), count=-1), r"micro-batches: must not be negative, got \[-1\]"),
    (_plan(stage(0, 8, 0), count=0), "micro-batches: a plan needs at least one"),
    (_plan(stage(0, 8, 0), count=7), "micro-batches: .*add up to 7, the global batch has 8"),
    (_plan(stage(0, 8, 0), migrations=(Migration(0, 0, 0, 0),)), r"migrations: \(R0.S0 m0 on R0\) stays where it is"),
    (_plan(stage(0, 8, 0), migrations=(Migration(0, 0, 0, 1),)), r"migrations: .* names executor 1 of 1"),
    (_plan(stage(0, 8, 0), migrations=(Migration(-1, 0, 0, 0),)), r"migrations: .* names replica -1 of 1"),
    (_pair(Migration(0, 2, 0, 1)), r"migrations: \(R0.S2 m0 on R1\), but R0 has 2 stages"),
    (_pair(Migration(0, 0, 4, 1)), r"migrations: .*, but R0 has 4 micro-batches"),
    (_pair(Migration(0, 0, 1, 1), Migration(0, 0, 1, 1)), r"migrations: .* is given away twice"),
    (_pair(Migration(0, 1, 0, 1), cut=3), r"migrations: .* layers are 4-8 and the executor holds 3-8"),
]


@pytest.mark.parametrize(("plan", "text"), RULES, ids=[text[:40] for _, text in RULES])
def test_each_rule_names_itself_and_the_values(plan: ParallelPlan, text: str) -> None:
    with pytest.raises(InvalidPlan, match=f"^{text}"):
        validate(plan, DEMO_MODEL, alive=range(6), num_micro_batches=8)


def test_the_demo_plan_keeps_all_rules() -> None:
    validate(demo_plan(), DEMO_MODEL, alive=range(8), num_micro_batches=8)


def test_a_small_weight_may_mean_mlp_blocks_only() -> None:
    """3:3:3:1 over 4 head groups: the slow member has no heads and no vocabulary, but a tenth of the MLP blocks."""
    model = ModelSpec(vocab_size=64, vocab_block=16)
    plan = _plan(stage(0, 8, *range(4), weights=(6, 6, 6, 1)))
    validate(plan, model)
    held = layout(plan, model)
    sizes = {name: len(held.shards(3)[name]) for name in ("layers.0.wq.weight", "layers.0.w_up.weight", "head.weight")}
    assert sizes == {"layers.0.wq.weight": 0, "layers.0.w_up.weight": 16, "head.weight": 0}


def test_valid_migrations_keep_all_rules() -> None:
    validate(_pair(Migration(0, 0, 0, 1), Migration(1, 1, 3, 0)), DEMO_MODEL, num_micro_batches=8)


def test_units_follow_their_executor() -> None:
    plan = _pair(Migration(0, 0, 0, 1), Migration(1, 1, 3, 0))
    assert [plan.executor(0, 0, 0), plan.executor(0, 1, 0), plan.executor(1, 1, 3)] == [1, 0, 0]
    assert [plan.num_units(a, s) for a in (0, 1) for s in (0, 1)] == [3, 5, 5, 3]


def test_split_backward_keeps_more_activations_on_later_stages() -> None:
    plan = demo_plan()
    memory = MemoryModel(DEMO_MODEL, 128, {})
    late = dataclasses.replace(plan, schedule=Schedule.ZB_H1)
    need, split = ([memory.rank_bytes(layout(p, DEMO_MODEL), rank) for rank in (0, 2)] for p in (plan, late))
    assert split[0] == need[0]
    assert split[1] > need[1]


def test_memory_rule_names_rank_need_and_limit() -> None:
    plan = demo_plan()
    memory = MemoryModel(DEMO_MODEL, 128, {})
    need = {rank: memory.rank_bytes(layout(plan, DEMO_MODEL), rank) for rank in plan.active}
    # Four copies of half of 4 layers and of the embedding; more is in test_memory.py.
    state = 4 * 4 * layout(plan, DEMO_MODEL).num_elements(0)
    assert need[0] > state
    assert need[0] > need[3], "the first stage has more micro-batches in flight"
    validate(plan, DEMO_MODEL, memory=MemoryModel(DEMO_MODEL, 128, need))
    with pytest.raises(InvalidPlan, match=f"^memory: rank 0 needs {need[0]} bytes and has {need[0] - 1}$"):
        validate(plan, DEMO_MODEL, memory=MemoryModel(DEMO_MODEL, 128, {**need, 0: need[0] - 1}))
    assert memory.rank_bytes(layout(plan, DEMO_MODEL), 77) == 0


def test_cluster_knows_nodes_and_refuses_doubles() -> None:
    cluster = Cluster.of(5, devices_per_node=2)
    assert [cluster.node_of[r] for r in cluster.ranks] == ["n0", "n0", "n1", "n1", "n2"]
    assert cluster.only([4, 1]).ranks == (1, 4)
    with pytest.raises(ValueError, match="lists a rank twice"):
        Cluster((Device(1, "a"), Device(1, "b")))


def test_speeds_are_part_of_the_plan_only_where_known() -> None:
    plan = demo_plan()
    assert "speeds" not in plan.to_dict()
    known = dataclasses.replace(plan, speeds=known_speeds({5: 0.5, 6: 1.0, 40: 0.5}, plan.active))
    assert known.speeds == ((5, 500),)
    assert known.speed_of == {5: 0.5}
    assert ParallelPlan.from_dict(known.to_dict()) == known
    assert known.digest != plan.digest
    with pytest.raises(InvalidPlan, match="speeds: rank 5 has 0"):
        validate(dataclasses.replace(plan, speeds=((5, 0),)), DEMO_MODEL)

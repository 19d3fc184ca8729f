"""Plans and placements of thousands of devices: what a change of plan takes on the bus."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from resihp_messages import Envelope, Kind, command, decode, encode
from resihp_messages.placement import NodeRanks, PackedPlacement, node_of, starts_of
from resihp_messages.subjects import stream_of
from resihp_plan import Cluster, ModelSpec, ParallelPlan
from resihp_plan.compact import compact
from resihp_plan.planner import plan_initial
from resihp_scheduler.changes import MANY_RANKS

DEVICES, PER_NODE = 10_240, 8
MODEL = ModelSpec(num_layers=80, hidden=8192, num_heads=64, num_kv_heads=8, ffn_hidden=28_672, vocab_size=32_000)


def _envelope(body: command.ApplyPlan) -> Envelope[command.ApplyPlan]:
    return Envelope.of(body, job="demo", source="scheduler", incarnation="i", epoch=3)


def _damaged(plan: ParallelPlan, rng: random.Random) -> ParallelPlan:
    """One device in 64 is gone, speeds are known of as many, layers and counts are no longer even."""
    gone = set(rng.sample(plan.active, len(plan.active) // 64))
    replicas = []
    for replica in plan.replicas:
        stages = list(replica.stages)
        for s, stage in enumerate(stages):
            if gone & set(stage.ranks):
                ranks = tuple(r for r in stage.ranks if r not in gone)
                stages[s] = replace(stage, ranks=ranks, weights=tuple(rng.choice([100, 90, 50]) for _ in ranks))
                if s and stages[s].layer_stop - stages[s].layer_start > 1:
                    stages[s - 1] = replace(stages[s - 1], layer_stop=stages[s - 1].layer_stop + 1)
                    stages[s] = replace(stages[s], layer_start=stages[s].layer_start + 1)
        replicas.append(replace(replica, stages=tuple(stages), num_micro_batches=replica.num_micro_batches))
    slow = sorted(rng.sample(sorted(set(plan.active) - gone), len(plan.active) // 64))
    return ParallelPlan(plan.epoch + 1, tuple(replicas), speeds=tuple((r, rng.randint(100, 999)) for r in slow))


def test_a_change_of_ten_thousand_devices_fits_into_the_stream() -> None:
    """The newest plan, the two in whose layouts state may be, and where everybody is: to every node."""
    rng = random.Random(7)
    cluster = Cluster.of(DEVICES, devices_per_node=PER_NODE)
    plans = [plan_initial(cluster, MODEL, 4, 16, DEVICES // 64, 8 * DEVICES)]
    for _ in range(2):
        plans.append(_damaged(plans[-1], rng))
    parts = tuple(
        NodeRanks(node=f"gpu-node-{n:04}", ranks=tuple(range(PER_NODE * n, PER_NODE * (n + 1))), starts=(0, 1) * 4)
        for n in range(DEVICES // PER_NODE)
    )
    body = command.ApplyPlan(
        node="gpu-node-0000",
        token=1,
        mode="recovery",
        reconfiguration_id="r",
        plan=compact(plans[-1].to_dict()),
        digest=plans[-1].digest,
        base_plans=tuple(compact(p.to_dict()) for p in plans[:2]),
        store_address="10.0.0.1:4000",
        placement=PackedPlacement.of(parts),
    )
    raw = encode(_envelope(body))
    assert len(raw) * len(parts) < stream_of(Kind.COMMAND).max_bytes / 2, "a change, and the one that supersedes it"
    received = decode(raw).body
    assert isinstance(received, command.ApplyPlan)
    assert ParallelPlan.from_dict(received.plan).digest == plans[-1].digest
    assert [ParallelPlan.from_dict(p).digest for p in received.base_plans] == [p.digest for p in plans[:2]]
    assert node_of(received.placement) == node_of(parts)
    assert starts_of(received.placement) == starts_of(parts)
    readable = encode(_envelope(body.model_copy(update={"plan": plans[-1].to_dict(), "placement": parts})))
    assert len(readable) > 5 * len(raw), "else the readable form would do"
    assert MANY_RANKS < DEVICES


PARTS = st.lists(
    st.builds(
        lambda node, starts: (node, starts),
        st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
        st.lists(st.integers(0, 3), max_size=5),
    ),
    max_size=6,
)


@settings(max_examples=50)
@given(PARTS, st.randoms(use_true_random=False))
def test_packed_placements_say_the_same(drawn: list[tuple[str, list[int]]], rng: random.Random) -> None:
    ranks = iter(rng.sample(range(1000), 30))
    parts = tuple(
        NodeRanks(node=node, ranks=tuple(next(ranks) for _ in starts), starts=tuple(starts)) for node, starts in drawn
    )
    packed = PackedPlacement.model_validate(PackedPlacement.of(parts).model_dump(mode="json"))
    assert starts_of(packed) == starts_of(parts)
    assert node_of(packed) == node_of(parts)


@pytest.mark.parametrize("text", ["", "!", "eJw=", PackedPlacement.of(()).packed[:-4], "eJyrVkpKLEpVsjLSUaoFAB8QBCk="])
def test_damaged_placements_are_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="not a placement"):
        PackedPlacement(packed=text)

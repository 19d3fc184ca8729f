"""Who is whose peer in a job that somebody else launched."""

from __future__ import annotations

import pytest

from resihp_agent.attach.job import spec_of
from resihp_detect.work import shares
from resihp_messages.attach import AttachHello
from resihp_plan import ModelSpec, validate
from resihp_scheduler.attached import peers


def hello(axes: dict[str, int], world: int) -> AttachHello:
    return AttachHello.model_validate(
        {"job": "j", "rank": 0, "world_size": world, "local_rank": 0, "local_world_size": world, "axes": axes}
    )


@pytest.mark.parametrize(
    ("axes", "world", "groups"),
    [
        ({}, 4, [[0, 1, 2, 3]]),
        ({"pp": 2, "dp": 2}, 4, [[0, 1], [2, 3]]),  # Megatron: pipeline stages vary slowest
        ({"dp": 2, "pp": 2}, 4, [[0, 2], [1, 3]]),
        ({"pp": 2, "dp": 2, "tp": 2}, 8, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({"tp": 20}, 20, [list(range(20))]),
    ],
)
def test_peers_share_a_stage(axes: dict[str, int], world: int, groups: list[list[int]]) -> None:
    spec = spec_of(hello(axes, world))
    plan, model = peers(spec, 1), ModelSpec(**spec.model.model_dump())
    validate(plan, model, num_micro_batches=spec.batch.micro_batches)
    found: dict[str, list[int]] = {}
    for rank, share in sorted(shares(plan, model).items()):
        found.setdefault(share.group, []).append(rank)
    assert sorted(found.values()) == groups
    for ranks in groups:
        assert len({shares(plan, model)[rank].per_token for rank in ranks}) == 1


def test_every_rank_describes_the_same_job() -> None:
    first = hello({"pp": 2, "dp": 2}, 4)
    assert spec_of(first) == spec_of(first.model_copy(update={"rank": 3, "local_rank": 1, "local_world_size": 2}))


def test_ten_thousand_ranks() -> None:
    spec = spec_of(hello({"pp": 8, "dp": 157, "tp": 8}, 8 * 157 * 8))
    assert len(peers(spec, 1).world) == 10_048

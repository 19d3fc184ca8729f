"""Who a process is, from what launchers say."""

from __future__ import annotations

import pytest

from resihp_attach.place import AXES, JOB, has_rank, job_name, parse_axes, read_place


def test_torchrun() -> None:
    place = read_place(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert (place.rank, place.world_size, place.local_rank, place.local_world_size, place.start) == (5, 8, 1, 4, 2)


def test_slurm() -> None:
    place = read_place({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"})
    assert (place.job, place.rank, place.world_size, place.local_rank) == ("77", 3, 4, 1)


def test_a_single_process() -> None:
    place = read_place({})
    assert (place.rank, place.world_size) == (0, 1)
    assert not has_rank({})


def test_names_become_tokens() -> None:
    assert job_name({JOB: "my run/7"}) == "my-run-7"
    assert job_name({"TORCHELASTIC_RUN_ID": "none", JOB: "x"}) == "x"


@pytest.mark.parametrize("text", ["xp=2", "dp=0", "dp", "dp=2,dp=2", "dp=two"])
def test_bad_axes(text: str) -> None:
    with pytest.raises(ValueError, match="axes"):
        parse_axes(text)
    with pytest.raises(ValueError, match="axes"):
        read_place({AXES: text})

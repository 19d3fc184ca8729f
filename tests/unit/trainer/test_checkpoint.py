"""Checkpoints: written by one layout, read by any; damaged ones are refused with the file's name."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from resihp_messages import CheckpointConfig
from resihp_plan import ModelSpec, ParallelPlan, layout
from resihp_trainer.checkpoint import (
    available,
    check_files,
    check_fits,
    complete,
    partial_of,
    put_aside,
    read_into,
    read_manifest,
    write_part,
    writers_of,
)
from resihp_trainer.checkpoints import Checkpoints, Failed
from resihp_trainer.join import Applied
from resihp_trainer.shards import ShardSet
from support.trainer_cases import SPEC
from support.trainer_state import PLANS, assert_known, values

DTYPE = torch.float64


def step(iteration: int) -> Applied:
    return Applied(iteration, 1, 400, 90, 2.5, 800.0)


def write(path: Path, plan: ParallelPlan, iteration: int = 6, keep: int = 2) -> Path:
    held = layout(plan, SPEC)
    for rank in writers_of(plan):
        write_part(partial_of(path, iteration, plan.epoch), values(held, rank))
    return complete(path, held, step(iteration), seed=7, dtype=DTYPE, keep=keep)


@pytest.mark.parametrize("old", PLANS)
def test_any_layout_reads_what_any_layout_wrote(old: ParallelPlan, tmp_path: Path) -> None:
    folder = write(tmp_path, old)
    manifest = read_manifest(folder)
    assert manifest.applied == step(6)
    check_fits(folder, manifest, SPEC, seed=7, dtype=DTYPE)
    check_files(folder, manifest, manifest.files)
    for new in PLANS:
        for rank in new.world:
            held = ShardSet.empty(layout(new, SPEC), rank, DTYPE)
            num_bytes = read_into(held, folder, manifest, lambda: None)
            assert num_bytes == sum(t.numel() * 8 for s in held.shards.values() for t in s.state)
            assert_known(held)


def test_those_of_a_history_that_is_given_up_are_kept_under_another_name(tmp_path: Path) -> None:
    for iteration in (4, 6, 8):
        write(tmp_path, PLANS[0], iteration, keep=3)
    assert [p.name.split("-")[:2] for p in put_aside(tmp_path, 4)] == [
        ["suspect", "it00000006"],
        ["suspect", "it00000008"],
    ]
    assert [iteration for iteration, _ in available(tmp_path)] == [4]
    write(tmp_path, PLANS[0], 6, keep=3)  # committed again
    assert [iteration for iteration, _ in available(tmp_path)] == [4, 6]
    assert len(put_aside(tmp_path, 4)) == 1  # and given up again
    assert len(list(tmp_path.glob("suspect-it00000006-*/manifest.json"))) == 2
    assert put_aside(tmp_path / "nowhere", 0) == ()


def test_the_newest_stay_and_leftovers_go(tmp_path: Path) -> None:
    write_part(partial_of(tmp_path, 1, 1), values(layout(PLANS[0], SPEC), 0))  # cut short
    for iteration in (2, 4, 6):
        write(tmp_path, PLANS[0], iteration)
    assert [i for i, _ in available(tmp_path)] == [4, 6]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["it00000004", "it00000006"]
    write(tmp_path, PLANS[1], 6)  # again, after a return to 4
    assert read_manifest(available(tmp_path)[-1][1]).plan == PLANS[1]
    assert available(tmp_path / "nowhere") == ()


def test_the_next_round_may_have_begun_elsewhere(tmp_path: Path) -> None:
    """A slow thread names iteration 4 while other ranks already write 5: those files must stay."""
    held = layout(PLANS[0], SPEC)
    early = writers_of(PLANS[0])[1:]
    for rank in early:
        write_part(partial_of(tmp_path, 5, PLANS[0].epoch), values(held, rank))
    write(tmp_path, PLANS[0], 4)
    write_part(partial_of(tmp_path, 5, PLANS[0].epoch), values(held, writers_of(PLANS[0])[0]))
    complete(tmp_path, held, step(5), seed=7, dtype=DTYPE, keep=2)
    assert [i for i, _ in available(tmp_path)] == [4, 5]


def test_damage_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path, PLANS[0])
    victim = folder / "rank2.safetensors"
    raw = bytearray(victim.read_bytes())
    raw[-5] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(ValueError, match=r"rank2\.safetensors: checksum .* damaged"):
        check_files(folder, read_manifest(folder), ["rank0.safetensors", "rank2.safetensors"])
    victim.write_bytes(raw[:-1])
    with pytest.raises(ValueError, match=r"rank2\.safetensors: has \d+ bytes"):
        read_manifest(folder)
    victim.unlink()
    with pytest.raises(ValueError, match=r"rank2\.safetensors: missing"):
        read_manifest(folder)
    (folder / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match=r"manifest\.json: not a manifest"):
        read_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"manifest\.json: missing"):
        read_manifest(folder)


def test_another_job_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, PLANS[0])
    manifest = read_manifest(folder)
    with pytest.raises(ValueError, match="of another model"):
        check_fits(folder, manifest, ModelSpec(), seed=7, dtype=DTYPE)
    with pytest.raises(ValueError, match="written in float64, the job trains in float32"):
        check_fits(folder, manifest, SPEC, seed=7, dtype=torch.float32)
    with pytest.raises(ValueError, match="seed 7, the job has 8"):
        check_fits(folder, manifest, SPEC, seed=8, dtype=DTYPE)
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(data | {"format": 2}))
    with pytest.raises(ValueError, match="format 2 is not 1"):
        read_manifest(folder)


def test_a_round_is_over_when_all_files_are_there(tmp_path: Path) -> None:
    plan = PLANS[0]
    held, writers = layout(plan, SPEC), writers_of(plan)
    with ThreadPoolExecutor(1) as thread:
        ranks = {r: checkpoints(tmp_path, thread, lambda *_: None) for r in plan.active}
        for rank, mine in ranks.items():
            mine.begin(values(held, rank), step(6))
        while (votes := sum(mine.report(8) for mine in ranks.values())) < 8:
            assert available(tmp_path) == ()
        naming = {rank: mine.conclude(votes, 8) for rank, mine in ranks.items()}
        assert [rank for rank, name in naming.items() if name is not None] == [writers[0]]
        name = naming[writers[0]]
        assert name is not None
        assert name.result() == available(tmp_path)[-1][1]
    assert not any(mine.is_busy for mine in ranks.values())


def test_a_file_that_cannot_be_written_ends_the_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    failed: list[tuple[int, Path, str]] = []
    with ThreadPoolExecutor(1) as thread:
        mine = checkpoints(tmp_path / "file", thread, lambda *f: failed.append(f))
        mine.begin(values(layout(PLANS[0], SPEC), 0), step(6))
        while (vote := mine.report(8)) == 0:
            pass
        assert vote == 9
        assert "checkpoint of iteration 6 is not written" in capsys.readouterr().err
        assert mine.conclude(vote + 7, 8) is None
        assert not mine.is_busy
    ((iteration, path, reason),) = failed
    assert (iteration, path.parent) == (6, tmp_path / "file")
    assert "Not a directory" in reason


def test_a_checkpoint_that_is_given_up_leaves_room_and_the_older_one(tmp_path: Path) -> None:
    plan = PLANS[0]
    older, held = write(tmp_path, plan), layout(plan, SPEC)
    with ThreadPoolExecutor(1) as thread:
        mine = checkpoints(tmp_path, thread, lambda *_: None)
        assert held.plan.replicas[0].stages[0].ranks[0] == writers_of(plan)[0] == 0
        mine.begin(values(held, 0), step(8))
        while not mine.report(8):
            pass
        assert len(list(tmp_path.glob(".it*.partial"))) == 1
        assert mine.conclude(9, 8) is None  # another rank could not write
    assert not list(tmp_path.glob(".it*.partial"))
    assert [folder for _, folder in available(tmp_path)] == [older]


def test_a_checkpoint_that_cannot_be_named_is_said_to_have_failed(tmp_path: Path) -> None:
    failed: list[tuple[int, Path, str]] = []
    with ThreadPoolExecutor(1) as thread:
        mine = checkpoints(tmp_path, thread, lambda *f: failed.append(f))
        mine.begin(values(layout(PLANS[0], SPEC), 0), step(8))
        while not mine.report(8):
            pass
        naming = mine.conclude(8, 8)  # the other ranks' files are not there
        assert naming is not None
        assert isinstance(naming.exception(), FileNotFoundError)
    assert [(iteration, path) for iteration, path, _ in failed] == [(8, tmp_path)]


def checkpoints(path: Path, thread: ThreadPoolExecutor, failed: Failed) -> Checkpoints:
    return Checkpoints(CheckpointConfig(path=str(path)), seed=7, dtype=DTYPE, writer=thread, failed=failed)

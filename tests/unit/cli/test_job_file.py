"""Job files: each mistake is one line that names the key and the rule."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from resihp_cli.errors import CliError
from resihp_cli.job_file import check_data, load, load_plan, localised, parse, resumed
from support.gateway import HEALTHY


def test_a_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        'name = "small"\niterations = 5\n[parallel]\ntp = 1\n[[faults]]\nkind = "kill"\nrank = 1\niteration = 3\n'
    )
    spec = load(file)
    assert (spec.name, spec.iterations, spec.parallel.num_devices) == ("small", 5, 4)
    assert spec.faults[0].rank == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iteration_count = 3", "unknown key 'iteration_count' (did you mean 'iterations'?)"),
        ("[model]\nhiden = 3", "unknown key 'model.hiden' (did you mean 'hidden'?)"),
        ("[timeouts]\nxyzzy = 3", "unknown key 'timeouts.xyzzy'"),
        ("[parallel]\ntp = 8", "parallel.tp (8) exceeds model.num_kv_heads (4)"),
        ("[parallel]\npp = 9", "parallel.pp (9) exceeds model.num_layers (8)"),
        ("[parallel]\ndp = 9", "parallel.dp (9) exceeds batch.micro_batches (8)"),
        ("[parallel]\ntp = 0", "parallel.tp: input should be greater than or equal to 1, got 0"),
        ("[timeouts]\nstall_s = 9", "timeouts.stall_s (9.0) must be smaller than timeouts.node_s (4.0)"),
        ("iterations = 'many'", "iterations: input should be a valid integer"),
        ("dtype = 'float16'", "dtype"),
        ("iterations = ", "not TOML"),
        ("[model]\nhidden = 100\nnum_heads = 3", "must be a multiple of"),
        ("[[faults]]\nkind = 'kill'\nrank = 8\niteration = 1", "rank 8 is not below tp*pp*dp = 8"),
    ],
)
def test_mistakes_are_named(text: str, words: str) -> None:
    with pytest.raises(CliError) as error:
        parse(text, origin="job.toml")
    assert words in str(error.value)
    assert str(error.value).startswith("job.toml: ")
    assert "\n" not in str(error.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CliError, match="not UTF-8"):
        load(tmp_path / "binary.toml")


def test_data(tmp_path: Path) -> None:
    check_data(None)
    with pytest.raises(CliError, match="does not exist"):
        check_data(str(tmp_path / "none"))
    with pytest.raises(CliError, match="no readable, non-empty file"):
        check_data(str(tmp_path))
    (tmp_path / "empty.txt").touch()
    with pytest.raises(CliError, match="no readable, non-empty file"):
        check_data(str(tmp_path))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.txt").write_text("text")
    check_data(str(tmp_path))
    check_data(str(tmp_path / "deep" / "a.txt"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_data_without_permission(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("text")
    file.chmod(0)
    with pytest.raises(CliError, match="cannot be read"):
        check_data(str(file))


def test_plan_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = HEALTHY.to_dict()
    del plan["epoch"]
    file.write_text(json.dumps(plan))
    assert load_plan(file) == HEALTHY.with_epoch(0).to_dict()
    for text, words in (
        ("[", "not JSON"),
        ("[]", "a JSON object"),
        ("{}", "not a plan"),
        ('{"replicas": 1}', "not a plan"),
    ):
        file.write_text(text)
        with pytest.raises(CliError, match=words):
            load_plan(file)


def test_resuming_needs_a_folder_of_checkpoints() -> None:
    with pytest.raises(CliError, match=r"--resume: the job file has no checkpoints\.path"):
        resumed(parse("", origin="job.toml"))
    spec = resumed(parse('[checkpoints]\npath = "kept"\nevery = 5', origin="job.toml"))
    assert (spec.checkpoints.resume, spec.checkpoints.every) == (True, 5)
    assert localised(spec).checkpoints.path == str(Path("kept").absolute())
    with pytest.raises(CliError, match=r"checkpoints\.resume needs checkpoints\.path"):
        parse("[checkpoints]\nresume = true", origin="job.toml")

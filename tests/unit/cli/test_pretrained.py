"""`[model] hf` in a job file: sizes from the folder, the rest from the file, absolute paths for the workers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from resihp_cli import job_file
from resihp_cli.commands.forecast import model_of
from resihp_cli.errors import CliError
from resihp_cli.pretrained import check_files
from resihp_plan import ModelSpec
from resihp_plan.huggingface import config_of

MODEL = ModelSpec(hidden=64, num_heads=4, num_kv_heads=2, ffn_hidden=256, vocab_size=512, qkv_bias=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "config.json").write_text(json.dumps(config_of(MODEL, dtype="bfloat16", max_positions=99)))
    return tmp_path


def parsed(table: str) -> Any:
    return job_file.parse(table, origin="job.toml")


def test_sizes_come_from_the_folder(folder: Path) -> None:
    spec = parsed('[model]\nhf = "qwen"\ndropout = 0.1\nmlp_block = 32\n[data]\ntokenizer = "qwen"')
    assert (spec.model.hidden, spec.model.num_kv_heads, spec.model.qkv_bias) == (64, 2, True)
    assert (spec.model.dropout, spec.model.mlp_block, spec.model.vocab_block) == (0.1, 32, 32)
    local = job_file.localised(spec)
    assert local.model.hf == str(folder / "qwen")
    assert local.data.tokenizer == str(folder / "qwen")
    assert local.data.path is None
    assert job_file.build(local.model_dump(mode="json"), origin="stored") == local  # without the folder


def test_missing_files_are_named_before_anything_starts(folder: Path) -> None:
    spec = parsed('[model]\nhf = "qwen"\n[data]\ntokenizer = "qwen"')
    with pytest.raises(CliError, match=r"model\.hf: no such file: qwen/model\.safetensors or"):
        check_files(spec)
    (folder / "qwen" / "model.safetensors").touch()
    with pytest.raises(CliError, match=r"data\.tokenizer: no such file: qwen/tokenizer\.json"):
        check_files(spec)
    (folder / "qwen" / "tokenizer.json").touch()
    check_files(spec)
    check_files(parsed(""))


def test_the_planner_takes_a_folder_too(folder: Path) -> None:
    assert dataclasses.replace(model_of("qwen"), hf=None, mlp_block=16, vocab_block=16) == MODEL


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('hf = "none"', "job.toml: model.hf: none/config.json: No such file"),
        ('hf = "qwen"\nhidden = 32', "model.hidden comes from qwen/config.json"),
        ("hf = 5", "model.hf: expected a folder, got 5"),
        ('hf = "gpt"', "model_type 'gpt2'"),
        ('hf = "broken"', "broken/config.json"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(folder: Path, table: str, words: str) -> None:
    for name, content in (("gpt", '{"model_type": "gpt2"}'), ("broken", "[1]")):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(content)
    with pytest.raises(CliError) as error:
        parsed(f"[model]\n{table}")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('dtype = "float64"\n[model]\nautocast = true', "model.autocast needs dtype float32"),
        ("[optimizer]\nwarmup = 5\ncosine_until = 5", "must exceed optimizer.warmup (5)"),
        ("[model]\nrope_low_freq_factor = 4.0", "must be below model.rope_high_freq_factor"),
        ("[model]\ndropout = 1.0", "dropout"),
        ("[parallel]\nmemory_bytes = 0", "memory_bytes"),
    ],
)
def test_rules_of_training(text: str, words: str) -> None:
    with pytest.raises(CliError) as error:
        parsed(text)
    assert words in str(error.value)

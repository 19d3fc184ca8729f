"""Models of Hugging Face folders: logits and gradients as transformers computes them, slices only, bits kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from resihp_messages import JobSpec
from resihp_plan import GroupKind, GroupSpec, Interval, ModelSpec, ParallelPlan, layout
from resihp_plan.huggingface import config_of, spec_of, tensor_name
from resihp_trainer import data, export
from resihp_trainer.model import MicroBatch, Pretrained, Stage, TensorParallel
from resihp_trainer.reference import corpus_of, train_reference
from resihp_trainer.result import ShardFiles, result_folder, write_shards
from resihp_trainer.shards import ShardSet, narrow
from support.thread_groups import ThreadGroup, run_ranks
from support.trainer_cases import replica, stage

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 160,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 8}),
    "llama 3": ("llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "llama linear tied": (
        "llama",
        {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
        },
    ),
    "qwen 2.5": ("qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "qwen 2.5 tied": ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
}
LENGTHS = (21, 5, 12)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, ModelSpec]:
    """A random model, the folder that transformers saved it to, and how we see it."""
    transformers = pytest.importorskip("transformers")
    kind, changes = CASES[request.param]
    torch.manual_seed(0)
    name = {"llama": "Llama", "qwen2": "Qwen2"}[kind]
    config = getattr(transformers, f"{name}Config")(**SMALL, **changes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():  # biases and norms are born as constants
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in parameter_name:
                parameter.mul_(4)  # logits that are not all alike
    folder = tmp_path_factory.mktemp("hf") / "model"
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    spec = spec_of(json.loads((folder / "config.json").read_text()))
    return model, folder, dataclasses.replace(spec, hf=str(folder))


def documents() -> list[np.ndarray[Any, np.dtype[np.integer]]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 160, n + 1) for n in LENGTHS]


def theirs(model: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of all documents one after the other, and the gradients of their summed loss."""
    model.zero_grad()
    found = []
    for text in documents():
        tokens = torch.from_numpy(text)
        logits = model(input_ids=tokens[None, :-1]).logits[0]
        torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum").backward()
        found.append(logits.detach())
    return torch.cat(found), {name: p.grad.clone() for name, p in model.named_parameters()}


def close(found: Tensor, expected: Tensor) -> None:
    """To float32's rounding; they normalise and rotate in float32 whatever the dtype, so float64 would show no more."""
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("weights", [(1,), (3, 1)])
def test_logits_and_gradients_are_those_of_transformers(
    case: tuple[Any, Path, ModelSpec], weights: tuple[int, ...]
) -> None:
    model, _, spec = case
    logits, gradients = theirs(model)
    batch = MicroBatch.of(documents())
    plan = ParallelPlan(1, (replica(1, stage(0, spec.num_layers, range(len(weights)), weights)),))
    held = layout(plan, spec)

    def body(rank: int, groups: Mapping[str, ThreadGroup]) -> None:
        mine = ShardSet.initial(held, rank, seed=0, dtype=torch.float32, tick=lambda: None)
        leaves = {name: p.detach().requires_grad_() for name, p in mine.parameters.items()}
        ours = Stage(spec, 0, spec.num_layers, leaves, TensorParallel(groups.get("tp")), mine.vocab_start)
        head = held.shards(rank)["embed.weight"]
        close(ours.logits(batch, None).detach(), logits[:, head.start : head.stop])
        torch.autograd.backward(ours.forward(batch, None))
        for name, leaf in leaves.items():
            if leaf.numel():
                assert leaf.grad is not None
                close(leaf.grad, narrow(held, name, gradients[tensor_name(name)], held.shards(rank)[name]))

    if len(weights) == 1:
        body(0, {})
    else:
        run_ranks([GroupSpec("tp", GroupKind.TP, tuple(range(len(weights))))], body)


def test_export_and_import_keep_every_bit(case: tuple[Any, Path, ModelSpec], tmp_path: Path) -> None:
    """From an uneven layout, in many small files; transformers reads the result."""
    model, folder, spec = case
    stages = (stage(0, 1, [0, 1], [3, 1]), stage(1, 3, [2]))
    plan = ParallelPlan(1, (replica(1, *stages),))
    for rank in plan.active:
        held = ShardSet.initial(layout(plan, spec), rank, seed=0, dtype=torch.float32, tick=lambda: None)
        write_shards(tmp_path, held, 3)
    shards = ShardFiles(result_folder(tmp_path, 1), plan, spec)
    job = JobSpec.model_validate({"model": dataclasses.asdict(spec), "parallel": {"tp": 1, "pp": 2, "dp": 1}})
    export.export(job, shards, tmp_path / "out", "float32", max_file_bytes=20_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    assert spec_of(json.loads((tmp_path / "out" / "config.json").read_text())) == dataclasses.replace(spec, hf=None)
    written, read = Pretrained(tmp_path / "out"), Pretrained(folder)
    for tensor in spec.tensors:
        whole = Interval(0, tensor.shape[tensor.dim])
        assert torch.equal(written.read(tensor, whole), read.read(tensor, whole)), tensor.name
    again = type(model).from_pretrained(tmp_path / "out")
    assert torch.equal(theirs(again)[0], theirs(model)[0])
    with pytest.raises(ValueError, match="exists already"):
        export.export(job, shards, tmp_path / "out", "float32")


def test_a_job_begins_where_the_model_left_off(case: tuple[Any, Path, ModelSpec], tmp_path: Path) -> None:
    """The undisturbed run of a job with `[model] hf`: its first loss is theirs on the same documents, then it falls."""
    model, _, spec = case
    (tmp_path / "text.txt").write_text("\n\n".join(f"paragraph {i} of a text in plain letters" for i in range(40)))
    job = JobSpec.model_validate(
        {
            "iterations": 6,
            "model": dataclasses.asdict(spec),
            "parallel": {"tp": 1, "pp": 1, "dp": 1},
            "batch": {"micro_batches": 2, "tokens_per_micro_batch": 64},
            "optimizer": {"lr": 1e-2, "warmup": 2, "cosine_until": 6},
            "data": {"path": str(tmp_path / "text.txt")},
        }
    )
    losses = train_reference(job).losses
    batch = data.documents(corpus_of(job), job.batch, job.seed, 1)
    with torch.no_grad():
        texts = [torch.from_numpy(t.astype(np.int64)) for t in batch.texts]
        logits = [model(input_ids=t[None, :-1]).logits[0] for t in texts]
    total = sum(
        torch.nn.functional.cross_entropy(x, t[1:], reduction="sum") for x, t in zip(logits, texts, strict=True)
    )
    assert losses[0] == pytest.approx(float(total) / batch.num_tokens, rel=1e-5)
    assert losses[-1] < losses[0] - 0.2


def test_slices_are_views_of_the_mapped_file(case: tuple[Any, Path, ModelSpec]) -> None:
    """So a rank copies its shards and nothing else."""
    model, folder, spec = case
    source = Pretrained(folder)
    source.check(spec)
    columns = next(t for t in spec.tensors if t.name == "layers.1.w_down.weight")
    theirs_too = model.model.layers[1].mlp
    assert torch.equal(source.read(columns, Interval(8, 24)), theirs_too.down_proj.weight.detach()[:, 8:24])
    rows = next(t for t in spec.tensors if t.name == "layers.1.w_up.weight")
    part = source.read(rows, Interval(8, 24))
    assert torch.equal(part, theirs_too.up_proj.weight.detach()[8:24])
    assert str(folder / "model.safetensors") in _mapping_of(part.data_ptr())


def _mapping_of(address: int) -> str:
    """The line of this process's memory map that contains an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, _, stop = line.split()[0].partition("-")
        if int(start, 16) <= address < int(stop, 16):
            return line
    return ""


def test_a_folder_that_does_not_fit_is_refused(case: tuple[Any, Path, ModelSpec], tmp_path: Path) -> None:
    _, folder, spec = case
    quantised = tmp_path / "quantised"
    quantised.mkdir()
    whole = {tensor_name(t.name): torch.zeros(t.shape, dtype=torch.int8) for t in spec.tensors}
    save_file(whole, quantised / "model.safetensors")
    with pytest.raises(ValueError, match="is I8: quantised models are not supported"):
        Pretrained(quantised).check(spec)
    with pytest.raises(ValueError, match=r"model\.layers\.3.*\n?"):
        Pretrained(folder).check(dataclasses.replace(spec, num_layers=4))
    with pytest.raises(ValueError, match=r"has shape .* the job's model"):
        Pretrained(folder).check(dataclasses.replace(spec, ffn_hidden=192))
    with pytest.raises(ValueError, match=r"model\.safetensors: no such file"):
        Pretrained(tmp_path).check(spec)


def base() -> dict[str, Any]:
    return config_of(ModelSpec(), dtype="float32", max_positions=128)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"head_dim": 256}, "head_dim 256"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_would_be_computed_differently_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec_of({**base(), **change})


def test_older_and_newer_ways_to_say_the_same() -> None:
    plain = ModelSpec(rope_scaling="linear", rope_factor=2.0, rope_theta=5e5)
    older = config_of(plain, dtype="float32", max_positions=128)
    newer = {**older, "rope_parameters": {**older["rope_scaling"], "rope_theta": 5e5}}
    del newer["rope_scaling"], newer["rope_theta"]
    assert spec_of(older) == spec_of(newer)
    assert (spec_of(older).rope_theta, spec_of(older).rope_factor) == (5e5, 2.0)


def test_exported_files_are_readable_in_half_the_precision(
    case: tuple[Any, Path, ModelSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command itself."""
    _, _, spec = case
    plan = ParallelPlan(1, (replica(1, stage(0, spec.num_layers, [0])),))
    held = ShardSet.initial(layout(plan, spec), 0, seed=0, dtype=torch.float32, tick=lambda: None)
    write_shards(tmp_path, held, 1)
    job = JobSpec.model_validate({"model": dataclasses.asdict(spec), "parallel": {"tp": 1, "pp": 1, "dp": 1}})
    (tmp_path / "spec.json").write_text(job.model_dump_json())
    arguments = ["--spec", str(tmp_path / "spec.json"), "--final", str(result_folder(tmp_path, 1))]
    assert export.main([*arguments, "--to", str(tmp_path / "half"), "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "half")
    with safe_open(tmp_path / "half" / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("model.norm.weight").dtype is torch.bfloat16
    (result_folder(tmp_path, 1) / "rank0.safetensors").unlink()
    assert export.main([*arguments, "--to", str(tmp_path / "none")]) == 2
    assert "rank0.safetensors: missing" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()

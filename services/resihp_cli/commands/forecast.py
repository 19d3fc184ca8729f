"""`resihp simulate` and `resihp plan init`: jobs that do not exist yet, on A100-like nodes."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from resihp_cli import job_file
from resihp_cli.errors import CliError
from resihp_cli.pretrained import completed
from resihp_cli.view.picture import Curve, draw
from resihp_plan import Cluster, CostModel, Device, MemoryModel, ModelSpec, Workload
from resihp_plan.planner import Infeasible
from resihp_plan.planner.choose import Chosen, choose_initial
from resihp_plan.planner.lifetime import Fault, Lifetime, generate, live, read_node_faults
from resihp_plan.planner.policies import Arena, Policy

SIZES = {
    "llama2-7b": (32, 4096, 32, 32, 11_008),
    "llama2-13b": (40, 5120, 40, 40, 13_824),
    "llama2-30b": (60, 6656, 52, 52, 17_920),
    "llama2-70b": (80, 8192, 64, 8, 28_672),
}
"""Layers, hidden, heads, key/value heads, MLP units."""


def model_of(name: str) -> ModelSpec:
    """A preset, a Hugging Face folder, or the model of a job file. Raises `CliError`."""
    if name in SIZES:
        layers, hidden, heads, kv, ffn = SIZES[name]
        return ModelSpec(layers, hidden, heads, kv, ffn, mlp_block=128, vocab_size=32_000, vocab_block=128)
    if Path(name).is_dir():
        return ModelSpec(**completed({"hf": name}))
    if not name.endswith(".toml"):
        raise CliError(f"--model {name!r}: expected one of {', '.join(SIZES)}, a model folder, or a JOB.toml")
    return ModelSpec(**job_file.load(Path(name)).model.model_dump())


_NODES = re.compile(r"([1-9]\d*)x([1-9]\d*)(?:@(\d*\.?\d+))?")


def cluster_of(text: str, memory_gb: float) -> Cluster:
    """`4x8` -> four nodes of eight devices; `2x8,2x8@0.5` -> two more of another generation, half as fast. Raises
    `CliError`."""
    memory = int(memory_gb * 1e9)
    devices: list[Device] = []
    nodes = 0
    for part in text.split(","):
        found = _NODES.fullmatch(part.strip())
        if found is None or (peak := float(found[3] or 1.0)) <= 0.0:
            raise CliError(f"--cluster {text!r}: expected NODESxDEVICES, such as 4x8, or 2x8,2x8@0.5 for unequal ones")
        for _ in range(int(found[1])):
            devices += [Device(len(devices) + i, f"n{nodes}", memory, peak) for i in range(int(found[2]))]
            nodes += 1
    return Cluster(tuple(devices))


def cost_of(model: ModelSpec) -> CostModel:
    """A100 at 42 % of its peak, NVSwitch in the node, 200 Gb/s between nodes."""
    return CostModel.for_model(
        model,
        flops_per_s=312e12 * 0.42,
        collective_latency_s=2e-5,
        transfer_latency_s=2e-5,
        bytes_per_s=22e9,
        tp_bytes_per_s=200e9,
        bytes_per_element=2,
    )


def _choose(
    model: ModelSpec, cluster: Cluster, micro_batches: int, tokens: int
) -> tuple[tuple[Chosen, ...], Workload, MemoryModel]:
    workload = Workload.typical(micro_batches, tokens, documents_per_micro_batch=1)
    # 18 bytes per parameter in mixed precision
    memory = MemoryModel(model, tokens, cluster.memory_of, bytes_per_element=2, state_copies=9)
    try:
        return choose_initial(cluster, model, workload, cost_of(model), memory=memory), workload, memory
    except Infeasible as error:
        raise CliError(str(error)) from error


def run_init(model: str, cluster: str, *, micro_batches: int, tokens: int, memory_gb: float, as_json: bool) -> int:
    """Raises `CliError` if nothing fits."""
    found, workload, _ = _choose(model_of(model), cluster_of(cluster, memory_gb), micro_batches, tokens)
    if as_json:
        print(json.dumps(found[0].plan.to_dict(), indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("TP", "PP", "DP", "layers", "s/iteration", "tokens/s"):
        table.add_column(column)
    for c in found[:8]:
        layers = "+".join(str(st.layer_stop - st.layer_start) for st in c.plan.replicas[0].stages)
        speed = f"{workload.tokens / c.step_s:.0f}"
        table.add_row(str(c.tp), str(c.pp), str(c.dp), layers, f"{c.step_s:.3f}", speed)
    Console(highlight=False).print(table)
    return 0


def run_simulate(
    model: str,
    cluster: str,
    faults: str,
    policies: str,
    *,
    days: float,
    start_day: float,
    micro_batches: int,
    tokens: int,
    seed: int,
    as_json: bool,
    csv_file: Path | None,
    picture: Path | None,
) -> int:
    """Raises `CliError` for unknown policies and unreadable traces."""
    chosen = [_policy(name.strip()) for name in policies.split(",") if name.strip()]
    devices = cluster_of(cluster, 74.0)
    happened = _faults(faults, devices, days, start_day, seed)
    shape, workload, memory = _choose(model_of(model), devices, micro_batches, tokens)
    arena = Arena(shape[0].plan, devices, workload, cost_of(model_of(model)), memory)
    found = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        for policy in chosen:
            task = bar.add_task(str(policy), total=days * 86_400)
            step = lambda now, task=task: bar.update(task, completed=now)  # noqa: E731
            found.append(live(policy, arena, shape[0].step_s, happened, days * 86_400, progress=step))
    if csv_file is not None:
        _write(csv_file, found)
    if picture is not None:
        curves = [Curve(f.policy, [(s.start_s, s.stop_s, s.throughput) for s in f.segments]) for f in found]
        draw(picture, curves, f"{model} on {cluster}, {len(happened)} faults in {days:g} days (simulated)")
    if as_json:
        print(
            json.dumps(
                {
                    "degrees": [shape[0].tp, shape[0].pp, shape[0].dp],
                    "faults": len(happened),
                    "policies": [_row(f) for f in found],
                }
            )
        )
        return 0
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("policy", "goodput", "changes", "paused", "stopped"):
        table.add_column(column)
    for f in found:
        hours = (f"{f.paused_s / 3600:.2f} h", f"{f.stopped_s / 3600:.2f} h")
        table.add_row(str(f.policy), f"{f.goodput:.1%}", str(f.changes), *hours)
    console = Console(highlight=False)
    console.print(f"TP {shape[0].tp} x PP {shape[0].pp} x DP {shape[0].dp}, {len(happened)} faults in {days:g} days")
    console.print(table)
    if any(f.goodput > 1.0005 for f in found):  # as it is shown
        console.print("above 100%: even healthy, faster than the plan that every policy begins with", style="dim")
    return 0


def _policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError as error:
        raise CliError(f"--policy {name!r}: expected names of {', '.join(Policy)}") from error


def _faults(source: str, cluster: Cluster, days: float, start_day: float, seed: int) -> tuple[Fault, ...]:
    nodes = list(dict.fromkeys(d.node for d in cluster.devices))
    if source == "generate":
        return generate(random.Random(seed), cluster.ranks, len(nodes), days)
    ranks = {n: [d.rank for d in cluster.devices if d.node == n] for n in nodes}
    try:
        with open(source, encoding="utf-8", newline="") as lines:
            found = read_node_faults(lines, nodes, lambda n: ranks[n], start_h=start_day * 24)
    except OSError as error:
        raise CliError(f"--faults {source}: {error.strerror or error}") from error
    except ValueError as error:
        raise CliError(f"--faults {source}: {error}") from error
    return tuple(f for f in found if f.start_s < days * 86_400)


def _row(f: Lifetime) -> dict[str, object]:
    return {
        "policy": str(f.policy),
        "goodput": f.goodput,
        "changes": f.changes,
        "paused_s": f.paused_s,
        "stopped_s": f.stopped_s,
    }


def _write(path: Path, found: list[Lifetime]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as out:
            rows = csv.writer(out)
            rows.writerow(["policy", "start_s", "stop_s", "relative_throughput"])
            for f in found:
                rows.writerows([str(f.policy), s.start_s, s.stop_s, s.throughput] for s in f.segments)
    except OSError as error:
        raise CliError(f"--csv {path}: {error.strerror or error}") from error

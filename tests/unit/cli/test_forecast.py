"""`resihp whatif`, `resihp simulate`, `resihp plan init`: predictions from the command line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from resihp_cli.app import app
from resihp_cli.commands.forecast import cluster_of, model_of
from resihp_cli.commands.whatif import parse_faults, print_answer
from resihp_cli.errors import CliError
from resihp_cli.view.picture import Curve, draw

JOB = 'name = "asked"\niterations = 5\n'


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_whatif_tells_what_a_slow_device_costs(job_file: Path) -> None:
    done = CliRunner().invoke(app, ["whatif", str(job_file), "--slow", "5x0.5", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["faults"] == {"5": 0.5}
    assert told["do_nothing_tokens_per_s"] < told["best_tokens_per_s"] < told["now_tokens_per_s"]
    assert told["best_tokens_per_s"] >= 0.93 * told["bound_tokens_per_s"]
    assert told["break_even_s"] > told["change_s"] > 2.0
    assert told["decision"]["plan"]["replicas"]


def test_whatif_prints_for_people(job_file: Path) -> None:
    done = CliRunner().invoke(app, ["whatif", str(job_file), "--kill", "3"])
    assert done.exit_code == 0, done.output
    assert "nobody acts" in done.output
    assert "predicted by nominal constants" in done.output  # nobody has measured a described job
    assert "best plan:" in done.output


@pytest.mark.parametrize(("bound", "is_shown"), [(900.0, True), (790.0, False)])
def test_whatif_shows_no_plan_above_its_bound(bound: float, is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is that of the plan in force: another arrangement of the same devices may beat it."""
    rates = {"now": 1000.0, "do_nothing": 0.0, "best": 800.0, "bound": bound}
    decision = {"name": "swap", "difference": "R0", "alternatives": []}
    told = {f"{what}_tokens_per_s": rate for what, rate in rates.items()}
    print_answer(
        "j",
        {
            **told,
            "predicted_by": "pace",
            "shares_cores": True,
            "change_s": 2.0,
            "bytes_moved": 9,
            "break_even_s": None,
            "decision": decision,
        },
    )
    shown = capsys.readouterr().out
    assert "at the job's pace" in shown
    assert "80.0%" in shown
    assert "as if each worker had a device of its own" in shown
    assert ("bound" in shown) is is_shown


def test_whatif_knows_slow_links_and_other_schedules(job_file: Path) -> None:
    options = ["--slow-link", "5x0.01", "--json"]
    done = CliRunner().invoke(app, ["whatif", str(job_file), *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["do_nothing_tokens_per_s"] < 0.99 * told["now_tokens_per_s"]
    assert told["decision"]["plan"]["schedule"] == "1f1b"
    free = CliRunner().invoke(app, ["whatif", str(job_file), "--slow", "5x0.5", "--any-schedule", "--json"])
    assert free.exit_code == 0, free.output
    same = CliRunner().invoke(app, ["whatif", str(job_file), "--slow", "5x0.5", "--json"])
    assert json.loads(free.output)["best_tokens_per_s"] >= json.loads(same.output)["best_tokens_per_s"]
    nobody = CliRunner().invoke(app, ["whatif", str(job_file), "--kill", "77"])
    assert str(nobody.exception) == "asked has no rank 77: its ranks are 0 to 7"
    bad = CliRunner().invoke(app, ["whatif", str(job_file), "--slow-link", "5x7"])
    assert isinstance(bad.exception, CliError)
    assert "expected RANKxF" in str(bad.exception)


@pytest.mark.parametrize("text", ["5", "5x", "x0.5", "5x1.5", "5x0", "-1x0.5", "5xfast"])
def test_faults_that_make_no_sense(text: str) -> None:
    with pytest.raises(CliError, match="expected RANKxP"):
        parse_faults([], [text])


def test_no_fault_and_unknown_names_are_refused(job_file: Path) -> None:
    with pytest.raises(CliError, match="no fault given"):
        parse_faults([], [])
    with pytest.raises(CliError, match="NODESxDEVICES"):
        cluster_of("4", 74.0)
    with pytest.raises(CliError, match="llama2-7b"):
        model_of("gpt")


def test_two_generations_of_devices() -> None:
    cluster = cluster_of("1x2,2x4@0.5", 74.0)
    assert [d.peak for d in cluster.devices] == [1.0] * 2 + [0.5] * 8
    assert [d.node for d in cluster.devices] == ["n0"] * 2 + ["n1"] * 4 + ["n2"] * 4
    options = ["plan", "init", "--model", "llama2-7b", "--micro-batches", "32", "--json", "--cluster"]
    done = CliRunner().invoke(app, [*options, "1x8,1x8@0.5"])
    assert done.exit_code == 0, done.output
    replicas = json.loads(done.output)["replicas"]
    work: dict[bool, float] = {True: 0.0, False: 0.0}
    for replica in replicas:
        for stage in replica["stages"]:
            layers = stage["layers"][1] - stage["layers"][0]
            for rank in stage["ranks"]:
                work[rank < 8] += replica["num_micro_batches"] * layers / len(stage["ranks"])
    assert 1.6 < work[True] / work[False] < 2.5, "the faster ones do about twice as much"
    for bad in ("4", "0x8", "2x8@0", "2x8,"):
        with pytest.raises(CliError, match="NODESxDEVICES"):
            cluster_of(bad, 74.0)


def test_plan_init_and_simulate(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "init", "--model", "llama2-7b", "--cluster", "1x8", "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.output)
    assert sorted(r for rep in plan["replicas"] for st in rep["stages"] for r in st["ranks"]) == list(range(8))
    trace, out = tmp_path / "trace.csv", tmp_path / "out.csv"
    trace.write_text("start_h,end_h,node,class\n30,40,1,GPU\n")
    options = ["--model", "llama2-7b", "--cluster", "2x8", "--days", "3", "--policy", "static,resihp"]
    done = CliRunner().invoke(app, ["simulate", *options, "--faults", str(trace), "--csv", str(out), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["faults"] == 8
    goodput = {p["policy"]: p["goodput"] for p in told["policies"]}
    assert 0.5 < goodput["static"] < goodput["resihp"] < 1.0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {r["policy"] for r in rows} == {"static", "resihp"}


@pytest.mark.parametrize(("cluster", "is_faster"), [("4x8", True), ("2x8", False)])
def test_more_than_all_is_explained(cluster: str, is_faster: bool) -> None:
    options = ["--cluster", cluster, "--days", "0.05", "--policy", "restart,resihp"]
    done = CliRunner().invoke(app, ["simulate", *options])
    assert done.exit_code == 0, done.output
    assert any(float(share) > 100.0 for share in re.findall(r"([\d.]+)%  ", done.stdout)) is is_faster
    assert ("above 100%: even healthy, faster" in done.stdout) is is_faster


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    curves = [Curve("a", [(0.0, 86_400.0, 1.0), (86_400.0, 172_800.0, 0.5)]), Curve("b", [(0.0, 172_800.0, 0.25)])]
    assert [c.goodput for c in curves] == [0.75, 0.25]
    draw(tmp_path / "out.svg", curves, "two runs")
    assert "<svg" in (tmp_path / "out.svg").read_text()
    with pytest.raises(CliError, match="--picture"):
        draw(tmp_path / "none" / "out.svg", curves, "nowhere")

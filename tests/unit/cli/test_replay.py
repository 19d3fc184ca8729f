"""`resihp replay` and `resihp who-is-slow`: files of every known layout, made here; real ones where RESIHP_DATA_DIR
names them.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from resihp_cli.__main__ import main
from resihp_cli.traces import read_trace

ITERATIONS, DEVICES = 60, 8


def seconds_of(iteration: int, device: int, rng: np.random.Generator) -> float:
    """Device 5 takes 1.5 times as long in 35 <= iteration < 48."""
    return float(0.5 * np.exp(rng.normal(0, 0.02)) * (1.5 if device == 5 and 35 <= iteration < 48 else 1.0))


def documented(path: Path) -> None:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["iteration", "device", "group", "micro_batches", "tokens", "sum_sq_len", "seconds", "wait_s"])
        for i in range(1, ITERATIONS + 1):
            for d in range(DEVICES):
                length = rng.uniform(0.5, 2.0)  # work differs by a factor of four: without lengths this would be noise
                writer.writerow([i, f"w{d}", "s0", 8, 8192, 1e9 * length, length * seconds_of(i, d, rng) + 3.0, 3.0])


def jsonl(path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        {"iteration": i, "device": f"w{d}", "forward_s": s, "backward_s": 2 * s}
        for i in range(1, ITERATIONS + 1)
        for d in range(DEVICES)
        for s in [seconds_of(i, d, rng)]
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def wide(path: Path) -> None:
    rng = np.random.default_rng(2)
    lines = ["iteration," + ",".join(f"w{d}" for d in range(DEVICES))]
    for i in range(1, ITERATIONS + 1):
        cells = [f"{1000 * seconds_of(i, d, rng):.1f}" for d in range(DEVICES)]
        cells[i % 3] = "" if i % 7 == 0 else cells[i % 3]
        lines.append(f"{i}," + ",".join(cells))
    path.write_text("\n".join(lines))


def pipeline(path: Path) -> None:
    rng = np.random.default_rng(3)
    lines = ["step,dp_rank,stage,mb_id,chunk,fwd_ms,bwd_ms"]
    for i in range(1, ITERATIONS + 1):
        for d in range(DEVICES):
            for mb in range(2):
                s = 1000 * seconds_of(i, d, rng)
                lines += [f"{i},{d},{stage},{mb},0,{s if stage else 500},{2 * s if stage else 900}" for stage in (0, 1)]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("make", "device"), [(documented, "w5"), (jsonl, "w5"), (wide, "w5"), (pipeline, "dp5.stage1")]
)
def test_every_layout_names_the_slow_device(
    make: Callable[[Path], None], device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.txt"  # chosen by header, not by suffix
    make(path)
    assert main(["replay", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    slow, clear = document["verdicts"]
    assert (slow["kind"], slow["device"], clear["kind"], clear["device"]) == (
        "DeviceSlow",
        device,
        "DeviceRecovered",
        device,
    )
    assert slow["first_iteration"] == 35
    assert slow["iteration"] <= 38
    assert slow["p"] == pytest.approx(1 / 1.5, rel=0.05)
    assert slow["evidence"]["peers"] == DEVICES - 1
    assert document["slow_at_end"] == {}


def test_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.csv"
    documented(path)
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "w5 is slow since 35: at 0.6" in shown
    assert "w5 is as fast as its peers again since 48" in shown
    assert main(["who-is-slow", str(path)]) == 0
    assert capsys.readouterr().out.startswith("w5 was at 0.6")
    path.write_text("\n".join(path.read_text().splitlines()[: 1 + 45 * DEVICES]))
    assert main(["who-is-slow", str(path)]) == 1
    assert "w5 is at 0.6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no rows"),
        ("a,b\n1,2\n", "unknown columns a, b; expected iteration, device"),
        ('{"iteration": 1\n', "line 1 is not JSON"),
        ("iteration,device,seconds\nx,a,1\n", "row 2: iteration 'x' is not a whole number"),
        ("iteration,device,seconds\n1,,1\n", "row 2: device is empty"),
        ("iteration,device,group,seconds\n1,a,s,1\n2,a,t,1\n", "device a is in group s and in group t"),
        ("iteration,device,seconds\n1,a,1\n", "1 iterations; 22 are needed"),
    ],
)
def test_bad_files_are_one_clear_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main(["replay", str(path)]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1


def test_numbers_that_are_none_count_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("iteration,device,seconds\n1,a,nan\n1,b,\n1,c,-2\n1,d,1.5\n")
    assert read_trace(path).num_invalid == 3


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, which is optional, is not installed")
    path, out = tmp_path / "run.csv", tmp_path / "out.png"
    documented(path)
    assert main(["replay", str(path), "--plot", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert main(["replay", str(path), "--plot", str(tmp_path / "none" / "out.png")]) == 2
    assert "does not exist" in capsys.readouterr().err


def real(name: str) -> Path:
    folder = os.environ.get("RESIHP_DATA_DIR")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"RESIHP_DATA_DIR names no folder with {name}")
    return Path(folder) / name


@pytest.mark.parametrize(
    "name", ["seed_SE_microbatch_compute", "seed_SE_step_worker", "seed_ST_microbatch_compute", "seed_ST_step_worker"]
)
def test_real_workload_imbalance_is_no_fault(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(real(f"{name}.csv")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == []


def test_real_slow_worker_is_named_within_three_samples_and_cleared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(real("alibaba_minibatch_job1.csv")), "--json"]) == 0
    slow, clear = json.loads(capsys.readouterr().out)["verdicts"]
    assert (slow["kind"], slow["device"], slow["first_iteration"]) == ("DeviceSlow", "w6", 1811)
    assert slow["iteration"] <= 1831
    assert (clear["kind"], clear["device"]) == ("DeviceRecovered", "w6")
    assert clear["iteration"] > 1941


def test_real_mixed_hardware_is_heterogeneity_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(real("alibaba_minibatch_job2.csv")), "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdict["kind"] == "Heterogeneity"
    assert set(verdict["evidence"]["relative_speed"]) >= {"w0", "w1"}

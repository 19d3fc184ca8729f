"""`resihp launch` with real processes: a rank dies in mid-iteration, the others go on as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from resihp_cli.__main__ import main
from resihp_cli.launching.ranks import start as start_rank
from support.waiting import wait_for

SCRIPT = Path(__file__).parents[3] / "examples" / "attach" / "launch_ddp.py"
DONE = re.compile(r"rank (\d) \(process (\d+)\) done with ranks \(([\d, ]*)\)")


def launch(folder: Path, *arguments: str, ranks: int = 4) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    outcome = folder / "outcome.json"
    command = [
        sys.executable,
        "-m",
        "resihp_cli",
        "launch",
        "-n",
        str(ranks),
        "--stall",
        "0.5",
        "--json",
        str(outcome),
    ]
    done = subprocess.run([*command, *arguments], check=False, capture_output=True, text=True, timeout=200)
    return done, json.loads(outcome.read_text())


@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("backward", "KILL"),
        pytest.param("step", "KILL", marks=pytest.mark.soak),
        pytest.param("forward", "STOP", marks=pytest.mark.soak),
    ],
)
def test_three_of_four_go_on_in_the_same_processes(point: str, number: str, tmp_path: Path) -> None:
    steps = ("--iterations", "20", "--output", str(tmp_path))
    alone = subprocess.run(
        [sys.executable, str(SCRIPT), *steps], check=False, capture_output=True, text=True, timeout=120
    )
    assert alone.returncode == 0, alone.stderr
    reference = torch.load(tmp_path / "rank-0.pt")
    (tmp_path / "rank-0.pt").unlink()

    victim = ("--kill-rank", "2", "--at", "9", "--point", point, "--signal", number)
    done, outcome = launch(tmp_path, str(SCRIPT), *steps, *victim)

    assert done.returncode == 0, done.stderr
    assert "rank 2 lost (SIGKILL); going on with 0, 1, 3" in done.stderr
    (loss,) = outcome["losses"]
    assert (loss["rank"], loss["ending"]) == (2, "SIGKILL")
    assert loss["epoch"] >= 2  # on a crowded host its groups may break long before its end is noticed: one epoch more
    assert loss["iteration"] in (9, 10)  # a killed rank's last vote may still have reached the others
    finished = {rank: (int(pid), ranks) for rank, pid, ranks in DONE.findall(done.stdout)}
    assert finished == {rank: (outcome["pids"][rank], "0, 1, 3") for rank in "013"}  # the processes that were started
    survivors = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1, 3)]
    assert not (tmp_path / "rank-2.pt").exists()
    for parameters in survivors:
        for ours, first, undisturbed in zip(parameters, survivors[0], reference, strict=True):
            assert torch.equal(ours, first)
            torch.testing.assert_close(ours, undisturbed, rtol=0.0, atol=1e-9)


def test_a_script_that_knows_nothing_of_it_is_launched_as_torchrun_does(tmp_path: Path) -> None:
    text = 'test "$RANK" = 1 && exit 3; test "$WORLD_SIZE$LOCAL_RANK" = "3$RANK" && exec sleep 60'
    done, outcome = launch(tmp_path, "/bin/sh", "-c", text, ranks=3)
    assert done.returncode == 3
    assert "does not use resihp_attach.ddp" in done.stderr
    assert outcome["exit_codes"] == {"0": -signal.SIGTERM, "1": 3, "2": -signal.SIGTERM}


def test_all_ranks_end_well(tmp_path: Path) -> None:
    done, outcome = launch(tmp_path, "/bin/true", ranks=2)
    assert (done.returncode, done.stderr, outcome["losses"]) == (0, "", [])


def children(process: subprocess.Popen[str], count: int) -> list[int]:
    """Processes of the ranks, once all are there."""
    path, deadline_s = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + 60
    while len(found := path.read_text().split()) < count:
        assert time.monotonic() < deadline_s
        assert process.poll() is None
        time.sleep(0.05)
    return [int(pid) for pid in found]


def gone(pids: list[int]) -> bool:
    deadline_s = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "program"),
    [
        (signal.SIGTERM, ("/bin/sleep", "100")),
        pytest.param(signal.SIGKILL, (str(SCRIPT), "--iterations", "1000000"), marks=pytest.mark.soak),
    ],
)
def test_ranks_do_not_outlive_the_launcher(number: signal.Signals, program: tuple[str, ...]) -> None:
    """Killed, it cannot tell them: they notice that nobody could say who is alive."""
    command = [sys.executable, "-m", "resihp_cli", "launch", "-n", "2", *program]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        pids = children(process, 2)
        process.send_signal(number)
        process.wait(timeout=120)
        assert gone(pids)
    assert process.returncode == (130 if number == signal.SIGTERM else -number)


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    """At any of its waits: SIGTERM may reach the launcher between the start of one rank and the next."""
    me = psutil.Process()
    before, num_cancelled = set(me.children()), 0
    for turns in range(200):
        starting = asyncio.ensure_future(start_rank(("/bin/sleep", "100"), 0, dict(os.environ)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():
            launched = await starting
            launched.signal(signal.SIGKILL)
            await launched.process.wait()
            launched.close()
            break
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        num_cancelled += 1
    assert num_cancelled > 2
    await wait_for(lambda: set(me.children()) <= before)


def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    for arguments, text in (
        (["-n", "2", "--min-ranks", "3", "/bin/true"], "--min-ranks 3 exceeds --nproc-per-node 2"),
        (["no-such-file.py"], "no-such-file.py: no such script"),
        (["no-such-program"], "no-such-program: no such program"),
    ):
        assert main(["launch", *arguments]) == 2
        assert text in capsys.readouterr().err

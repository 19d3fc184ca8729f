"""The zygote: forks fast, reports every end, shares nothing it should not, and takes its children with it."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from resihp_messages.page import PageState
from support.waiting import wait_for_blocking
from support.zygote_client import SpawnedWorker, ZygoteClient


def tell(worker: SpawnedWorker, order: str) -> None:
    worker.link.sendall(order.encode())


def ask(worker: SpawnedWorker, question: str) -> str:
    worker.link.settimeout(10.0)
    tell(worker, question)
    return worker.link.recv(65536).decode()


@pytest.mark.parametrize(
    ("order", "code"),
    [("return", 0), ("return 7", 7), ("raise", 1), ("exit 3", 3), ("exit text", 1), ("kill", -signal.SIGKILL)],
)
def test_every_kind_of_end_is_reported(zygote: ZygoteClient, order: str, code: int) -> None:
    worker = zygote.spawn(1)
    tell(worker, order)
    assert zygote.wait_exit(worker.pid) == code
    assert worker.link.recv(1) == b""  # nobody else holds the other end
    if order == "raise":
        assert "RuntimeError: told to" in worker.log_path.read_text()


def test_a_worker_gets_its_rank_job_page_and_log(zygote: ZygoteClient) -> None:
    worker = zygote.spawn(6, job="trial")
    assert ask(worker, "who") == "6 trial"
    progress = worker.page.read()
    assert (progress.epoch, progress.iteration, progress.state) == (3, 4, PageState.TRAINING)
    assert ask(worker, "print hello") == "done"
    assert "hello" in worker.log_path.read_text()  # at once: the log is not buffered
    tell(worker, "return")
    assert zygote.wait_exit(worker.pid) == 0


def test_a_worker_leads_its_own_group_and_holds_only_its_own_descriptors(zygote: ZygoteClient) -> None:
    first, second = zygote.spawn(0), zygote.spawn(1)
    for worker in (first, second):
        assert os.getpgid(worker.pid) == worker.pid
        assert ask(worker, "descriptors").split() == ["0", "1", "2", "link", "page"]
        assert ask(worker, "threads") == "1"
    os.killpg(first.pid, signal.SIGKILL)
    assert zygote.wait_exit(first.pid) == -signal.SIGKILL
    assert first.link.recv(1) == b""  # the second worker did not inherit the first one's link
    assert ask(second, "who") == "1 test"
    tell(second, "return")
    assert zygote.wait_exit(second.pid) == 0


def test_eight_workers_start_fast_and_share_memory(zygote: ZygoteClient) -> None:
    started_s = time.monotonic()
    workers = [zygote.spawn(rank) for rank in range(8)]
    answers = [ask(worker, "who") for worker in workers]
    took_s = time.monotonic() - started_s
    assert answers == [f"{rank} test" for rank in range(8)]
    assert took_s < 30.0  # a hang bound: they fork, they do not import
    pss_mb = [psutil.Process(w.pid).memory_full_info().pss / 2**20 for w in workers]
    assert max(pss_mb) < 100.0
    for worker in workers:
        tell(worker, "return")
        assert zygote.wait_exit(worker.pid) == 0


def test_bad_requests_are_answered_and_change_nothing(zygote: ZygoteClient) -> None:
    before = len(os.listdir(f"/proc/{zygote.process.pid}/fd"))
    for request, part in (
        ({"op": "fly"}, "unknown op 'fly'"),
        ({"no": "op"}, "unknown op"),
        ({"op": "spawn", "rank": "x", "job": "j"}, "needs rank and job"),
        ({"op": "spawn", "rank": 1, "job": "j"}, "needs 3 descriptors"),
        ({"op": "store"}, "needs host"),
    ):
        reply = zygote.request(request)
        assert reply["op"] == "error"
        assert part in reply["error"]
    ours, theirs = socket.socketpair()
    assert zygote.request({"op": "spawn", "rank": 1, "job": "j"}, (theirs.fileno(),))["op"] == "error"
    theirs.close()
    assert ours.recv(1) == b""  # the zygote closed what it was given
    ours.close()
    zygote.control.send(b"\xc1 not MessagePack")
    assert zygote._receive()["op"] == "error"
    assert len(os.listdir(f"/proc/{zygote.process.pid}/fd")) == before


def test_a_store_that_cannot_listen_is_an_answer(zygote: ZygoteClient) -> None:
    reply = zygote.request({"op": "store", "host": "203.0.113.7"})  # an address of documentation, nobody's
    if reply["op"] == "exited":
        reply = zygote._receive()
    assert reply["op"] == "error"
    assert reply["request"] == "store"


@pytest.mark.parametrize("order", ["return", "exit 3", "kill"])
def test_helpers_do_not_outlive_their_worker(zygote: ZygoteClient, order: str) -> None:
    """However it ends, and though no agent looks after its process group."""
    worker = zygote.spawn(0)
    helper = int(ask(worker, "helper"))
    assert _runs(helper)
    tell(worker, order)
    zygote.wait_exit(worker.pid)
    wait_for_blocking(lambda: not _runs(helper), what="the helper is gone")


def test_the_store_listens_on_its_host_only(zygote: ZygoteClient) -> None:
    pid, address = zygote.store()
    host, port = address.split(":")
    assert host == "127.0.0.1"
    listeners = [c for c in psutil.Process(pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [tuple(c.laddr) for c in listeners] == [(host, int(port))]
    os.kill(pid, signal.SIGKILL)
    assert zygote.wait_exit(pid) == -signal.SIGKILL


def test_closing_the_control_socket_ends_everything(tmp_path: Path) -> None:
    client = ZygoteClient(tmp_path, "support.zygote_program:main")
    store_pid, _ = client.store()
    workers = [client.spawn(rank) for rank in range(2)]
    os.kill(workers[1].pid, signal.SIGSTOP)  # a frozen one too
    assert client.close() == 0
    for pid in (store_pid, *(w.pid for w in workers)):
        assert not psutil.pid_exists(pid)


def test_a_killed_zygote_takes_workers_and_store_with_it(tmp_path: Path) -> None:
    client = ZygoteClient(tmp_path, "support.zygote_program:main")
    store_pid, _ = client.store()
    worker = client.spawn(0)
    assert ask(worker, "who") == "0 test"
    pids = (store_pid, worker.pid)
    client.process.kill()
    assert client.process.wait(10) == -signal.SIGKILL
    wait_for_blocking(lambda: not any(_runs(pid) for pid in pids), what="children gone")
    client.close()


def _runs(pid: int) -> bool:
    """Not gone and not a zombie that awaits its adopter."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_unknown_worker_program_ends_the_zygote_with_a_reason(tmp_path: Path) -> None:
    client = ZygoteClient(tmp_path, "support.nowhere:main")
    assert client.process.wait(60) != 0
    assert "no worker entry point 'support.nowhere:main'" in client.log_path.read_text()
    client.close()

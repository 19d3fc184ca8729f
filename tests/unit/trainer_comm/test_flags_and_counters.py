"""The abort flag, the counters, the caller's mistakes: everything of communication that needs no peer."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

import pytest
import torch

from resihp_messages import FaultPoint, ScriptedFault
from resihp_plan.groups import GroupKind
from resihp_trainer.comm import EpochAborted, Group, WaitSeconds
from resihp_trainer.comm.aborts import AbortFlag
from resihp_trainer.comm.communicator import _own_specs
from resihp_trainer.comm.operand import require_contiguous, require_gatherable, require_splits
from resihp_trainer.comm.rendezvous import StoreClient
from resihp_trainer.comm.solo import SoloGroup
from resihp_trainer.comm.waits import AXIS_OF_KIND, WaitCounter
from resihp_trainer.faults import Faults


@dataclass(frozen=True)
class Spec:
    name: str
    kind: str
    ranks: tuple[int, ...]


class Marks:
    def __init__(self) -> None:
        self.count = 0

    def mark_fault(self) -> None:
        self.count += 1


def test_an_abort_covers_older_epochs_and_no_newer_one() -> None:
    flag = AbortFlag()
    flag.check(0)
    flag.raise_to(5)
    flag.raise_to(3)  # late news of an older epoch lowers nothing
    for epoch in (0, 3, 5):
        with pytest.raises(EpochAborted) as caught:
            flag.check(epoch)
        assert caught.value.epoch == epoch
    flag.check(6)


def test_concurrent_aborts_keep_the_newest() -> None:
    for _ in range(50):
        flag = AbortFlag()
        threads = [Thread(target=flag.raise_to, args=(epoch,)) for epoch in (7, 3, 9, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert flag.covers(9)
        assert not flag.covers(10)


def test_waits_are_attributed_to_axes_and_taken_once() -> None:
    waits = WaitCounter()
    for kind, seconds in (("tp", 1.0), ("edge", 2.0), ("bucket", 4.0), ("world", 8.0), ("tp", 0.5)):
        waits.add(kind, seconds)
    assert waits.take() == WaitSeconds(tp=1.5, pp=2.0, dp=12.0)
    assert waits.take() == WaitSeconds()


def test_every_kind_of_group_of_a_plan_has_an_axis() -> None:
    assert {str(kind) for kind in GroupKind} == set(AXIS_OF_KIND)


def test_own_specs_keep_the_order_and_refuse_nonsense() -> None:
    specs = [Spec("world", "world", (0, 1, 2)), Spec("b", "bucket", (1, 2)), Spec("a", "tp", (0, 1))]
    assert [s.name for s in _own_specs(specs, 1)] == ["world", "b", "a"]
    assert [s.name for s in _own_specs(specs, 0)] == ["world", "a"]
    for wrong in (Spec("a", "tp", (0, 2)), Spec("c", "pipe", (0, 1)), Spec("c", "tp", ()), Spec("c", "tp", (1, 1))):
        with pytest.raises(ValueError):
            _own_specs([*specs, wrong], 0)


def test_operands_are_checked() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        require_contiguous(torch.zeros(4, 4)[:, 1])
    with pytest.raises(ValueError, match="1 outputs for a group of 2"):
        require_gatherable([torch.zeros(2)], torch.zeros(2), 2)
    with pytest.raises(ValueError, match="differs"):
        require_gatherable([torch.zeros(2), torch.zeros(3)], torch.zeros(2), 2)
    with pytest.raises(ValueError, match="differs"):
        require_gatherable([torch.zeros(2), torch.zeros(2, dtype=torch.float64)], torch.zeros(2), 2)
    for splits in ([3], [2, 2], [4, -1], [1, 1, 1]):
        with pytest.raises(ValueError, match="splits"):
            require_splits(torch.zeros(3), splits, 2)
    require_splits(torch.zeros(3), [0, 3], 2)


@pytest.mark.parametrize("address", ["", "nowhere", "host:", ":5", "host:x"])
def test_a_malformed_store_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        StoreClient(address, timeout_s=1.0)


def test_a_group_of_one_does_everything_alone() -> None:
    flag = AbortFlag()
    group: Group = SoloGroup("world", 4, 2, flag)
    x = torch.arange(3.0)
    group.all_reduce(x).wait()
    group.broadcast(x, 4).wait()
    gathered = [torch.zeros(3)]
    group.all_gather(gathered, x).wait()
    received = torch.zeros(3)
    group.all_to_all(received, x, [3], [3]).wait()
    assert x.tolist() == gathered[0].tolist() == received.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match="not in group"):
        group.broadcast(x, 3)
    flag.raise_to(2)
    with pytest.raises(EpochAborted):
        group.all_reduce(x)


class Slowed:
    """Notes what was asked of it."""

    def __init__(self) -> None:
        self.speeds: list[tuple[float, float]] = []

    def set_speed(self, p: float, for_s: float = 0.0) -> None:
        self.speeds.append((p, for_s))


def test_a_slow_fault_slows_the_device_once_and_dates_no_detection() -> None:
    script = (ScriptedFault(kind="slow", rank=3, iteration=2, factor=0.5, for_s=4.0),)
    marks, device = Marks(), Slowed()
    faults = Faults(script, 3, marks, device)
    for iteration in (1, 2, 2, 3):
        faults.strike(FaultPoint.COMPUTE, iteration)
    assert device.speeds == [(0.5, 4.0)]
    assert marks.count == 0


def test_a_fault_is_due_at_its_point_and_iteration_of_its_rank_only() -> None:
    script = (
        ScriptedFault(kind="kill", rank=3, iteration=5, point=FaultPoint.VOTE),
        ScriptedFault(kind="freeze", rank=3, iteration=5, point=FaultPoint.GRADIENT),
        ScriptedFault(kind="kill", rank=2, iteration=1),
    )
    marks = Marks()
    faults = Faults(script, 3, marks)
    assert faults.due(FaultPoint.VOTE, 5) is script[0]
    assert faults.due(FaultPoint.GRADIENT, 5) is script[1]
    for point, iteration in ((FaultPoint.VOTE, 4), (FaultPoint.COMPUTE, 5), (FaultPoint.COMPUTE, 1)):
        faults.strike(point, iteration)  # this process lives on
        assert faults.due(point, iteration) is None
    assert marks.count == 0


def test_a_fault_in_a_change_is_due_in_the_first_one_after_its_iteration() -> None:
    script = (ScriptedFault(kind="kill", rank=3, iteration=5, point=FaultPoint.SWITCH),)
    faults = Faults(script, 3, Marks())
    assert faults.due(FaultPoint.SWITCH, 4) is None
    assert faults.due(FaultPoint.SWITCH, 5) is faults.due(FaultPoint.SWITCH, 9) is script[0]
    assert faults.due(FaultPoint.MOVE, 9) is None
    assert {point for point in FaultPoint if not point.of_change} == {"compute", "gradient", "vote", "optimizer"}

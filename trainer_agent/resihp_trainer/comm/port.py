"""The port between training and communication: what the engine may ask of process groups, whatever the backend.

Ranks are always plan ranks here. Errors, both leaving the rank's state as it was before the operation:

* `EpochAborted`: the epoch was aborted (`Communicator.abort`), by the watcher or by this rank itself.
* `CommunicationFailed`: the backend raised before anybody aborted. The groups of the epoch are useless from then on;
  the caller aborts the epoch itself, so that its closed sockets release its neighbours too.

After either of them the tensors of every operation that was not waited for successfully are **lost**: the backend may
write to them until the groups are reaped. Drop them; never reuse or read them.

Lifetime of an epoch::

    groups = communicator.build(epoch, specs, rank, store_address)
    pending = groups["tp/0-1"].all_reduce(partial)
    pending.wait()
    ...
    communicator.retire(groups)

A planned change retires the old epoch after the first collective of the new world: then nobody is inside an operation
of the old one. After an abort it retires at once. One thread (the training thread) builds, operates and retires;
`abort` may come from any thread at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from resihp_trainer.comm.streams import StreamWaits

ReduceOp = Literal["sum", "max", "min"]


class EpochAborted(Exception):
    """The epoch was aborted: leave it, keep nothing of its unfinished operations, wait for a newer plan."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch} was aborted")
        self.epoch = epoch


class CommunicationFailed(Exception):
    """A collective, or the construction of a group, failed before any abort of the epoch."""

    def __init__(self, group: str, error: str) -> None:
        super().__init__(f"group {group}: {error}")
        self.group = group
        self.error = error


class Ticker(Protocol):
    """Where a wait shows that this process is alive (`resihp_messages.page.ProgressPage`)."""

    def tick(self) -> None: ...


class GroupSpecification(Protocol):
    """A process group of a plan (`resihp_plan.GroupSpec`)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """`world`, `tp`, `edge`, `bucket` or `copy`: which counter its waits go to."""
        ...

    @property
    def ranks(self) -> tuple[int, ...]:
        """Plan ranks; the index is the torch rank."""
        ...


class Pending(Protocol):
    """A running collective."""

    def wait(self) -> None:
        """Return when it is done. Ticks the progress page at least every 50 ms and adds its seconds to the counter of
        the group's kind. Raises `EpochAborted` within about 50 ms of an abort, or `CommunicationFailed`. A second call
        after success returns at once; ValueError if the group was retired before."""
        ...

    def is_done(self) -> bool:
        """Whether it is done, without waiting. Raises what `wait` raises."""
        ...


class Group(Protocol):
    """A process group of one epoch. An operation runs beside its caller, after the earlier ones of the group; the order
    of the calls must be the same on all its ranks. Tensors are contiguous and belong to the operation until its wait
    returns.

    Starting an operation in an aborted epoch raises `EpochAborted`. ValueError: a rank that is not in the group, a
    tensor that is not contiguous, sizes that do not fit, or a retired group.
    """

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> tuple[int, ...]:
        """Plan ranks; the index is the torch rank."""
        ...

    def all_reduce(self, tensor: Tensor, op: ReduceOp = "sum") -> Pending:
        """In place; every rank ends with the same bits."""
        ...

    def broadcast(self, tensor: Tensor, src: int) -> Pending:
        """Fill `tensor` with that of plan rank `src`. In a two-rank group this is the pipeline's point-to-point
        transfer (send and receive of gloo can neither be waited for in slices nor be aborted)."""
        ...

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> Pending:
        """`outputs[i]` becomes the tensor of `ranks[i]`; all of one shape and dtype."""
        ...

    def all_to_all(
        self, output: Tensor, input: Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> Pending:
        """Send `input_splits[i]` leading rows of one-dimensional `input`, in order, to `ranks[i]`, and receive
        `output_splits[i]` from it. Splits may be zero and uneven; they must agree between the two sides."""
        ...


@dataclass(frozen=True)
class EpochGroups(Mapping[str, Group]):
    """The groups of one epoch that contain this rank, by name, in the order in which they were built."""

    epoch: int
    rank: int
    by_name: Mapping[str, Group]

    def __getitem__(self, name: str) -> Group:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)


class WaitSeconds(NamedTuple):
    """Seconds spent in `Pending.wait`, by axis: groups of kind `tp`, `edge` (pp), `bucket`, `world` and `copy` (dp)."""

    tp: float = 0.0
    pp: float = 0.0
    dp: float = 0.0


class Communicator(Protocol):
    """Everything about communication of one process. Epochs only grow."""

    def build(
        self, epoch: int, specs: Sequence[GroupSpecification], rank: int, store_address: str, namespace: str = ""
    ) -> EpochGroups:
        """Build those groups of the epoch that contain `rank`, in the order of `specs`: the same on every rank.

        Meets the other ranks at the store (`host:port`) under keys prefixed `{namespace}/e{epoch}/`: a store outlives
        its jobs, so `namespace` must be new for every issue of a plan. Ticks while it waits. Raises
        `EpochAborted` if the epoch was or becomes aborted (nothing is left to retire then), `CommunicationFailed` if
        the store or a peer fails (likewise), ValueError if `epoch` is not newer than all built before or `specs` are
        malformed.
        """
        ...

    def begin(
        self, epoch: int, specs: Sequence[GroupSpecification], rank: int, store_address: str, namespace: str = ""
    ) -> EpochGroups:
        """As `build`, but returns with the first of the groups as soon as it stands; the others are built beside it."""
        ...

    def complete(self, groups: EpochGroups) -> EpochGroups:
        """All groups of an epoch that was begun, once they stand. Raises as `build`; the epoch is to be retired all the
        same."""
        ...

    def abort(self, epoch: int) -> None:
        """Abort `epoch` and every older one, for ever: running and future operations and constructions raise. Newer
        epochs are not touched. Any thread; returns at once; may be called before the epoch is built, and again."""
        ...

    def check(self, epoch: int) -> None:
        """Raise `EpochAborted` if the epoch was aborted: for long work without communication."""
        ...

    def settle(self, epoch: int) -> None:
        """Return when this process's device has done what it was given. Ticks; raises `EpochAborted` while it waits.
        To be called before a number is read from the device, because the read itself can be neither seen nor left.
        Returns at once where operations run on the host."""
        ...

    def retire(self, groups: EpochGroups) -> None:
        """Give the epoch up: its groups are dropped and this rank's keys deleted from the store, in a thread of its
        own. Operations on it raise ValueError afterwards. Returns at once; may be called again."""
        ...

    @property
    def streams(self) -> StreamWaits | None:
        """What times work on this process's device; None where operations run on the host."""
        ...

    def take_waits(self) -> WaitSeconds:
        """Seconds waited since the last call."""
        ...

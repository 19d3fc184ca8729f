"""The job as one rank holds it: the model under DDP, the steps, and the vote inside the optimizer's step."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from resihp_attach.ddp.averaging import Averaging, solo_group
from resihp_attach.ddp.epochs import Epochs, Standing
from resihp_attach.ddp.errors import LaunchError, RankLost, StateDiverged
from resihp_attach.ddp.step import Step
from resihp_attach.ddp.ties import Ties, tie
from resihp_trainer.comm import CommunicationFailed, EpochAborted


class Job:
    """One per process. Whatever changes `optimizer`'s state must be equal on all ranks, as under plain DDP."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        committed: int = 0,
        bucket_cap_mb: float = 25,
        ties: Ties | None = None,
    ) -> None:
        """Waits until all ranks are there, and gives everybody the parameters of the first one. `committed`: steps that
        a loaded checkpoint holds, equal on all ranks. `ties`: default: to `resihp launch`.

        Raises ValueError for a model on an accelerator, or in a process that `resihp launch` has not started but that
        is one of several; `LaunchError` if the job ends before it begins.
        """
        if any(p.device.type != "cpu" for p in model.parameters()):
            raise ValueError("the groups that survive are gloo's, and CPU only so far: the model is on an accelerator")
        ties = ties or tie()
        self.rank, self._launcher = ties.rank, ties.launcher
        self.committed = self._first = committed
        self._optimizer, self._bare = optimizer, model
        self._launcher.say("hello", rank=self.rank)
        self._epochs = Epochs(ties)
        self._averaging = Averaging(lambda: self._epochs.group)
        self._is_resumed = True
        """A step of the epoch has been committed."""
        optimizer.register_step_pre_hook(self._vote)
        optimizer.register_step_post_hook(self._commit)
        self._bucket_cap_mb = bucket_cap_mb
        self._model: DistributedDataParallel | None = None
        self._rejoin(has_voted=False)

    @property
    def model(self) -> DistributedDataParallel:
        """PyTorch's DDP around the model. Ask for it in every step: it may be another one if a rank is lost before the
        first step is committed."""
        assert self._model is not None
        return self._model

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks that are alive, by the numbers that the launcher gave them."""
        return self._epochs.order.members

    def steps(self, count: int) -> Iterator[Step]:
        """Iterations until `count` are committed; one that was given up comes again. Raises `LaunchError`."""
        while self.committed < count:
            if not self._epochs.is_up:
                self._rejoin(has_voted=False)
            before, world = self.committed, self.members
            self._averaging.begin()
            epoch = self._epochs.order.epoch
            yield Step(before + 1, world.index(self.rank), len(world), self._give_up)
            if self.committed == before and epoch == self._epochs.order.epoch and self._epochs.is_up:
                raise LaunchError(f"step {before + 1} has ended without a step of the optimizer")
        self.leave()

    def leave(self) -> None:
        """Wait until all have come here. `steps` does it at its end; for loops that end before."""
        while True:
            if not self._epochs.is_up:
                self._rejoin(has_voted=False)
            self._launcher.say("done", epoch=self._epochs.order.epoch, iteration=self.committed)
            if self._launcher.may_leave(self._epochs.order.epoch):
                return

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a small tensor over all ranks, for a log or a criterion; within a step, on all ranks alike. Raises
        `RankLost`."""
        total = value.detach().contiguous().clone()
        try:
            self._epochs.group.all_reduce(total).wait()
        except (EpochAborted, CommunicationFailed) as error:
            self._epochs.give_up(error)
            raise RankLost(str(error)) from None
        return total

    # --- hooks ----------------------------------------------------------------------------------------------------

    def _look(self, module: object, args: object) -> None:
        """Before the model is called: why compute what will be given up? Raises ValueError for a model of before."""
        if module is not self._model:
            raise ValueError("this is not job.model any more: a rank was lost in the first step")
        if torch.is_grad_enabled() and not self._epochs.is_up:
            raise RankLost(f"epoch {self._epochs.order.epoch} is over")

    def _vote(self, optimizer: object, args: object, kwargs: object) -> None:
        """Before the optimizer's step. After it, either all survivors take the step, or all get `RankLost`."""
        failure = self._averaging.failure
        if failure is not None:
            self._epochs.give_up(failure)
            raise RankLost(str(failure))
        order, step = self._averaging.order, self.committed + 1
        vote = torch.tensor([order, -order, step, -step], dtype=torch.int64)
        try:
            self._epochs.group.all_reduce(vote, "max").wait()
        except (EpochAborted, CommunicationFailed) as error:
            self._epochs.give_up(error)
            if self._rejoin(has_voted=True) == self.committed:
                raise RankLost(str(error)) from None
            return  # a survivor has the result, so everybody's gradients were complete: mine are, too
        high_order, low_order, high_step, low_step = vote.tolist()
        if high_order != -low_order or high_step != -low_step:
            raise StateDiverged(f"ranks differ: steps {-low_step} to {high_step}, or gradients in other buckets")

    def _commit(self, optimizer: object, args: object, kwargs: object) -> None:
        self.committed += 1
        if not self._is_resumed:
            self._is_resumed = True
            self._launcher.say("resumed", epoch=self._epochs.order.epoch, iteration=self.committed)

    def _give_up(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def _rejoin(self, *, has_voted: bool) -> int:
        self._is_resumed = False
        parameters, buffers = list(self._bare.parameters()), list(self._bare.buffers())
        newest = self._epochs.rejoin(Standing(self._first, self.committed, has_voted, parameters, buffers))
        if newest == self._first:
            self._wrap()
        return newest

    def _wrap(self) -> None:
        """DDP deals gradients to buckets anew after its first backward pass, which some ranks have behind them and
        others have not if a rank is lost in the first step: so then all begin with a new DDP."""
        if self._model is not None:
            self._model = None
            gc.collect()  # the old one takes its hooks off the parameters as it goes
        self._model = DistributedDataParallel(self._bare, process_group=solo_group(), bucket_cap_mb=self._bucket_cap_mb)
        self._model.register_comm_hook(None, lambda _, bucket: self._averaging.hook(bucket))
        self._model.register_forward_pre_hook(self._look)

"""One attached job on this node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from resihp_agent.attach.judge import Exit
from resihp_agent.attach.rank import AttachedRank
from resihp_agent.columns import ReportColumns
from resihp_messages import AttachedConfig, BatchConfig, JobSpec, ModelConfig, ParallelConfig, link
from resihp_messages.attach import AttachHello, AttachIteration
from resihp_messages.job import ENDLESS


@dataclass
class AttachedJob:
    """From the first hello of one start of the job to the next start."""

    name: str
    columns: ReportColumns
    start: int = 0
    ranks: dict[int, AttachedRank] = field(default_factory=dict)
    """Living ones."""
    announced: set[int] = field(default_factory=set)
    """Ranks of which `WorkersAttached` has been said."""
    epoch: int = 0
    """0 until the scheduler knows the job."""
    reconfiguration_id: str = ""
    waiting: dict[int, dict[int, link.IterationCommitted]] = field(default_factory=dict)
    """Iteration -> rank -> what it said. Ranks send in bursts, so one may be many iterations ahead of another here."""
    exits: list[Exit] = field(default_factory=list)
    """That are not explained yet."""
    lost: dict[int, Exit] = field(default_factory=dict)
    """Ranks that caused the end of this start."""
    outlived: bool = False
    """A rank has finished although others were lost (`resihp launch`): then the job has not failed."""
    explained_s: float | None = None
    """When a cause was found, here or on another node: later exits follow from it."""
    has_hung: bool = False
    launcher: bool = False
    """`resihp run` will say when nobody starts the job again."""
    ends_at_s: float | None = None
    """When the job counts as over, unless a new start says hello before."""
    stopped: str = ""
    """How its ranks were asked to end, if that was the end of it."""

    def complete(self, most: int) -> Iterator[dict[int, link.IterationCommitted]]:
        """Iterations of which every living rank has spoken, oldest first; incomplete ones if more than `most` wait."""
        while self.waiting:
            oldest = min(self.waiting)
            if not self.ranks.keys() <= self.waiting[oldest].keys() and len(self.waiting) <= most:
                return
            yield self.waiting.pop(oldest)


def spec_of(hello: AttachHello) -> JobSpec:
    """The job as every agent describes it, whoever of its ranks said hello.

    Its model is a placeholder of one layer per stage: only shares of work are taken from it, and peers do equal shares.
    """
    axes = hello.axes or {"dp": hello.world_size}
    pp, dp, tp = (axes.get(axis, 1) for axis in ("pp", "dp", "tp"))
    order = (*axes, *(axis for axis in ("pp", "dp", "tp") if axis not in axes))
    return JobSpec(
        name=hello.job,
        iterations=ENDLESS,
        model=ModelConfig(
            num_layers=pp, hidden=16 * tp, num_heads=tp, num_kv_heads=tp, ffn_hidden=16 * tp, vocab_size=16 * tp
        ),
        parallel=ParallelConfig(pp=pp, dp=dp, tp=tp),
        batch=BatchConfig(micro_batches=dp),
        rejoin="manual",
        attached=AttachedConfig(order=order),
    )


def committed(epoch: int, frame: AttachIteration) -> link.IterationCommitted:
    """As a worker of the built-in engine would say it."""
    return link.IterationCommitted(
        epoch=epoch,
        iteration=frame.iteration,
        first_of_epoch=False,
        step_s=frame.step_s,
        forward_s=sum(frame.unit_forward_s),
        backward_s=sum(frame.unit_backward_s),
        tp_wait_s=0.0,
        pp_wait_s=0.0,
        dp_wait_s=frame.wait_s,
        tokens=sum(frame.unit_tokens),
        sum_sq_len=sum(frame.unit_sum_sq_len),
        rss_bytes=frame.rss_bytes,
        loss=frame.loss,
        global_tokens=0,
        samples_expected=0,
        samples_once=0,
        unit_tokens=frame.unit_tokens,
        unit_sum_sq_len=frame.unit_sum_sq_len,
        unit_forward_s=frame.unit_forward_s,
        unit_backward_s=frame.unit_backward_s,
        phases_s=frame.phases_s,
    )

"""The healthy plan of a job: equal replicas, even stages, full TP groups."""

from __future__ import annotations

from resihp_plan.cluster import Cluster
from resihp_plan.layout import shares
from resihp_plan.model import ModelSpec
from resihp_plan.plan import ParallelPlan, ReplicaPlan, StagePlan
from resihp_plan.planner.decision import Infeasible, InfeasibleKind
from resihp_plan.validate import validate

HEADS_ARE_WHOLE = (
    "a key/value head and its query heads lie on one device; copies of key/value heads would allow more, and are not "
    "implemented: more stages or replicas use the other devices"
)


def plan_initial(
    cluster: Cluster, model: ModelSpec, tp: int, pp: int, dp: int, num_micro_batches: int, *, epoch: int = 1
) -> ParallelPlan:
    """TP varies fastest, then PP, then DP over the ranks in ascending order; further devices are left out.

    So a TP group lies on one node if ranks are numbered node by node and the degree divides the node's size.
    Raises `Infeasible`: `degree` if a degree exceeds what the model or the batch can be cut into, `no_devices` if
    the cluster is too small.
    """
    limits = (
        ("tp", tp, "num_kv_heads", model.num_kv_heads, HEADS_ARE_WHOLE),
        ("tp", tp, "vocabulary blocks", model.vocab_size // model.vocab_block, "a smaller vocab_block makes more"),
        ("pp", pp, "num_layers", model.num_layers, "a stage has at least one layer"),
        ("dp", dp, "num_micro_batches", num_micro_batches, "a replica without work is none"),
    )
    for axis, degree, what, limit, why in limits:
        if not 1 <= degree <= limit:
            raise Infeasible(InfeasibleKind.DEGREE, f"{axis} = {degree} must be 1 to {what} = {limit} ({why})")
    needed = tp * pp * dp
    if len(cluster.ranks) < needed:
        raise Infeasible(
            InfeasibleKind.NO_DEVICES, f"tp*pp*dp = {tp}*{pp}*{dp} needs {needed} devices, got {len(cluster.ranks)}"
        )
    layers = shares(model.num_layers, (1,) * pp)
    starts = [sum(layers[:s]) for s in range(pp)]
    batches = shares(num_micro_batches, (1,) * dp)

    def stage(a: int, s: int) -> StagePlan:
        first = (a * pp + s) * tp
        return StagePlan(starts[s], starts[s] + layers[s], cluster.ranks[first : first + tp], (1,) * tp)

    plan = ParallelPlan(
        epoch=epoch,
        replicas=tuple(ReplicaPlan(tuple(stage(a, s) for s in range(pp)), batches[a]) for a in range(dp)),
    )
    validate(plan, model, num_micro_batches=num_micro_batches)
    return plan

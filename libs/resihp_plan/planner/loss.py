"""The next plan after devices were lost (design: section 8; fail-stop acts at once).

Candidates come from `candidates`; the best few by a quick estimate are compared with `simulate`, each with several
divisions of the micro-batches. Within `TOLERANCE` of the fastest, the one that moves the fewest bytes wins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from resihp_plan.cluster import Cluster, Health
from resihp_plan.cost import CostModel
from resihp_plan.describe import describe_change
from resihp_plan.memory import MemoryModel
from resihp_plan.model import EMBEDDING, HEAD, ModelSpec
from resihp_plan.owners import Owned, lost
from resihp_plan.plan import ParallelPlan, ReplicaPlan
from resihp_plan.planner.candidates import Arrangement, Search, arrangements
from resihp_plan.planner.decision import Alternative, Decision, Infeasible, InfeasibleKind
from resihp_plan.planner.moving import Mover
from resihp_plan.planner.predict import Predictor
from resihp_plan.planner.proof import prove
from resihp_plan.workload import Workload

TOLERANCE = 0.02
"""Predictions closer than this are equal; then fewer moved bytes decide."""
NUM_SIMULATED = 8
"""Arrangements that are simulated because of their estimate."""
MAX_SIMULATED = 16
"""Arrangements that are simulated at most; the further ones are the best of their kind."""
MAX_SHIFTED_REPLICAS = 4
"""With more replicas than this, only the estimate's division of the micro-batches is simulated."""
STATE_COPIES = 3
"""What moves per parameter: itself and both AdamW moments."""


def plan_after_loss(
    plan: ParallelPlan,
    model: ModelSpec,
    cluster: Cluster,
    alive: Collection[int],
    workload: Workload,
    *,
    clock: Callable[[], float],
    cost: CostModel | None = None,
    health: Health | None = None,
    state_plan: ParallelPlan | None = None,
    reference: ParallelPlan | None = None,
    require_state: bool = True,
    epoch: int | None = None,
) -> Decision:
    """Plan for the devices in `alive` (ranks of the cluster), starting from `plan`.

    `workload`: the typical global batch; its number of micro-batches is kept. `clock`: monotonic seconds, to report
    `planning_s`. `health`: rank -> p; devices with p = 0 are not used. `state_plan`: in whose layout the ranks hold
    their state (default: `plan`). `reference`: healthy plan for the bound (default: `plan` as if nobody had died).
    `require_state`: refuse if a part of the state is held by nobody alive. `epoch`: of the new plan (default: next).

    Deterministic apart from `planning_s`. Raises `Infeasible`, and ValueError for ranks that the cluster does not
    know.
    """
    started = clock()
    unknown = sorted(set(alive) - set(cluster.ranks))
    if unknown:
        raise ValueError(f"ranks {unknown} are alive but not in the cluster {list(cluster.ranks)}")
    usable = frozenset(r for r in alive if (health or {}).get(r, 1.0) > 0.0)
    if not usable:
        raise Infeasible(InfeasibleKind.NO_DEVICES, f"none of the {len(cluster.ranks)} devices is alive")
    held = state_plan or plan
    missing = lost(held, model, frozenset(alive))
    if require_state and missing:
        raise _no_holder(missing, set(held.active) - set(alive))
    costs = cost or CostModel.for_model(model)
    search = Search(costs, workload, health, cluster.node_of, span_nodes=_spans_nodes(plan, cluster))
    mover = Mover(held, model, missing)
    scorer = _Scorer(plan, cluster, frozenset(alive), mover, search, plan.epoch + 1 if epoch is None else epoch)
    try:
        scored = scorer.scored(arrangements(plan, usable, search))
    except Infeasible:  # of memory: groups as large as possible need the least
        widest = Search(costs, workload, health, cluster.node_of, span_nodes=True, largest_groups=True)
        scored = scorer.scored(arrangements(plan, usable, widest))
    chosen = scorer.choose(scored)
    prove(chosen.plan, model, usable, workload)
    healthy = reference or plan
    typical = _fitted(workload, healthy)
    healthy_tokens_per_s = typical.tokens / Predictor(typical, costs, None).step_s(healthy)
    return Decision(
        plan=chosen.plan,
        name=chosen.name,
        predicted_step_s=chosen.step_s,
        predicted_tokens_per_s=workload.tokens / chosen.step_s,
        bound_tokens_per_s=healthy_tokens_per_s * len(usable) / len(healthy.world),
        alternatives=scorer.alternatives(scored, chosen),
        reason=scorer.reason(chosen),
        difference=describe_change(plan, chosen.plan),
        bytes_moved=scorer.bytes_moved(chosen),
        num_candidates=len(scored),
        planning_s=clock() - started,
    )


def _spans_nodes(plan: ParallelPlan, cluster: Cluster) -> bool:
    """Whether a TP group of `plan` has members on several nodes. If none has, the links between nodes are not made for
    it, and no new group should."""
    return any(len({cluster.node_of.get(r) for r in st.ranks}) > 1 for rep in plan.replicas for st in rep.stages)


def _fitted(workload: Workload, plan: ParallelPlan) -> Workload:
    return Workload(plan.num_micro_batches, workload.tokens_per_micro_batch, workload.sum_sq_len_per_micro_batch)


def _no_holder(missing: Sequence[Owned], dead: Collection[int]) -> Infeasible:
    layers = sorted({m.part + i for m in missing if m.part >= 0 for i in range(m.num_layers)})
    parts = [f"layers {_ranges(layers)}"] if layers else []
    others = {m.part for m in missing}
    parts += [word for part, word in ((EMBEDDING, "embedding"), (HEAD, "head")) if part in others]
    return Infeasible(
        InfeasibleKind.NO_STATE_HOLDER,
        f"state of {', '.join(parts)} is held by nobody alive (lost ranks {sorted(dead)})",
    )


def _ranges(numbers: list[int]) -> str:
    """`0-3, 6`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


@dataclass(frozen=True, eq=False)
class _Scored:
    name: str
    plan: ParallelPlan
    step_s: float


class _Scorer:
    """Predictions and bytes of the candidates of one planning."""

    def __init__(
        self, old: ParallelPlan, cluster: Cluster, alive: frozenset[int], mover: Mover, search: Search, epoch: int
    ) -> None:
        self.old, self.alive, self.mover, self.search, self.epoch = old, alive, mover, search, epoch
        tokens, cost = search.workload.tokens_per_micro_batch, search.cost
        self.memory = MemoryModel.of(cluster, cost.model, tokens, cost.bytes_per_element)
        self.predictor = Predictor(search.workload, cost, search.health)
        self._bytes: dict[_Scored, int] = {}

    def scored(self, candidates: tuple[Arrangement, ...]) -> list[_Scored]:
        """The best few by estimate, with the best of every kind among them; fastest first. Raises `Infeasible`."""
        found: list[tuple[str, ParallelPlan]] = []
        full: list[str] = []
        kinds: set[str] = set()
        simulated = 0
        for candidate in candidates:
            if simulated >= MAX_SIMULATED:
                break
            if simulated >= NUM_SIMULATED and candidate.name in kinds:
                continue
            counts = self.search.counts(candidate.replicas)
            plans = [self._plan(candidate, c) for c in _neighbours(counts)]
            excess = [self._excess(plan) for plan in plans]
            fitting = [plan for plan, e in zip(plans, excess, strict=True) if not e]
            if not fitting:
                full.append(f"{candidate.name}: {excess[0]}")
                continue
            kinds.add(candidate.name)
            simulated += 1
            found += [(candidate.name, plan) for plan in fitting]
        if not found:
            raise Infeasible(InfeasibleKind.MEMORY, f"{len(full)} candidates do not fit; {full[0]}")
        seconds = self.predictor.steps_s([plan for _, plan in found])
        scored = [_Scored(name, plan, step_s) for (name, plan), step_s in zip(found, seconds, strict=True)]
        return _ordered(scored, lambda x: (x.step_s, x.name))

    def _plan(self, candidate: Arrangement, counts: tuple[int, ...]) -> ParallelPlan:
        return ParallelPlan(
            epoch=self.epoch,
            replicas=tuple(ReplicaPlan(st, m) for st, m in zip(candidate.replicas, counts, strict=True)),
            standby=candidate.standby,
            schedule=self.old.schedule,
        )

    def _excess(self, plan: ParallelPlan) -> str:
        """The first rank that does not fit, in words; empty if all do."""
        if self.memory is None:
            return ""
        for rank, needed, limit in self.memory.excess(plan):
            return f"rank {rank} needs {needed} bytes and has {limit}"
        return ""

    def choose(self, scored: list[_Scored]) -> _Scored:
        """Fewest bytes among the fastest; then the faster one."""
        limit = scored[0].step_s * (1 + TOLERANCE)
        close = [x for x in scored if x.step_s <= limit]
        return _ordered(close, lambda x: (self.bytes_moved(x), x.step_s, x.name))[0]

    def bytes_moved(self, scored: _Scored) -> int:
        if scored not in self._bytes:
            elements = self.mover.to(scored.plan).total
            self._bytes[scored] = elements * STATE_COPIES * self.search.cost.bytes_per_element
        return self._bytes[scored]

    def alternatives(self, scored: list[_Scored], chosen: _Scored) -> tuple[Alternative, ...]:
        best_of: dict[str, _Scored] = {}
        for x in scored:
            if x.name != chosen.name:
                best_of.setdefault(x.name, x)
        return tuple(self._alternative(x, chosen) for x in best_of.values())

    def _alternative(self, x: _Scored, chosen: _Scored) -> Alternative:
        slower = x.step_s / chosen.step_s - 1
        moved = self._bytes.get(x)
        if moved is not None and slower <= TOLERANCE:
            less = self.bytes_moved(chosen)
            why = f"about as fast ({slower:+.1%} time), moves {moved / 1e6:.1f} MB instead of {less / 1e6:.1f}"
        else:
            why = f"{slower:.1%} more time per step"
        return Alternative(
            name=x.name,
            predicted_step_s=x.step_s,
            predicted_tokens_per_s=self.search.workload.tokens / x.step_s,
            bytes_moved=moved,
            difference=describe_change(self.old, x.plan),
            why_lost=why,
        )

    def reason(self, chosen: _Scored) -> str:
        lost = sorted(set(self.old.world) - self.alive)
        what = f"lost ranks {', '.join(map(str, lost))}" if lost else "no rank lost"
        return (
            f"{what}: {chosen.name}, predicted {self.search.workload.tokens / chosen.step_s:.0f} tokens/s, "
            f"{self.bytes_moved(chosen) / 1e6:.1f} MB to move"
        )


def _ordered(scored: list[_Scored], key: Callable[[_Scored], tuple[float | str, ...]]) -> list[_Scored]:
    """By key, equal ones by digest, which takes long for a large plan."""
    groups = itertools.groupby(sorted(scored, key=key), key)
    return [x for _, same in groups for x in _by_digest(list(same))]


def _by_digest(scored: list[_Scored]) -> list[_Scored]:
    return sorted(scored, key=lambda x: x.plan.digest) if len(scored) > 1 else scored


def _neighbours(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The division itself, and those with one micro-batch moved from a replica to its neighbour."""
    yield counts
    if len(counts) > MAX_SHIFTED_REPLICAS:
        return
    for a in range(len(counts) - 1):
        for giver, taker in ((a, a + 1), (a + 1, a)):
            if counts[giver] > 0:
                moved = list(counts)
                moved[giver] -= 1
                moved[taker] += 1
                yield tuple(moved)

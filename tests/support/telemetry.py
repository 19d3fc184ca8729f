"""Reports of a job that nobody trains: iterations of any plan on devices of any speed, node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from resihp_bus import Bus
from resihp_messages import AnyEnvelope, JobSpec, command
from resihp_messages.report import IterationReport
from resihp_plan import (
    CostModel,
    MicroBatchWork,
    ModelSpec,
    OpKind,
    ParallelPlan,
    Place,
    chunk_tokens,
    edge_group_name,
    routes,
)

FLOPS_PER_S = 4e9
PROBE_S = 4e-3


@dataclass
class PlayedJob:
    """Healthy times by the cost formula, with noise; each node reports its ranks. `speed`: rank -> p."""

    plan: ParallelPlan
    name: str = "demo"
    seed: int = 0
    noise: float = 0.01
    ranks_per_node: int = 4
    virtual_clock: bool = True
    speed: dict[int, float] = field(default_factory=dict)
    links: dict[int, float] = field(default_factory=dict)
    """Rank -> by how much the transfers of its TP group take longer."""
    edges: dict[int, float] = field(default_factory=dict)
    """Rank -> by how much all of its pipeline transfers take longer."""
    digests: dict[int, str] = field(default_factory=dict)
    """Rank -> what it says of every bucket that it shares; missing: what all say."""
    distances: dict[int, float] = field(default_factory=dict)
    """Rank -> how far its parameters were from the redone ones, told after iteration `redone`; missing: 1e-3."""
    redone: int = 0
    iteration: int = 0
    reconfiguration_id: str = "r1"

    def __post_init__(self) -> None:
        self.spec = JobSpec(name=self.name)
        self.model = ModelSpec(**self.spec.model.model_dump(include=set(ModelSpec.__dataclass_fields__)))
        self._cost = CostModel.for_model(self.model, flops_per_s=FLOPS_PER_S)
        self._rng = np.random.default_rng(self.seed)
        self._is_first = True

    def change(self, plan: ParallelPlan, reconfiguration_id: str) -> None:
        """From the next iteration on."""
        self.plan, self.reconfiguration_id, self._is_first = plan, reconfiguration_id, True

    def next_iteration(self) -> list[IterationReport]:
        """One more committed iteration: a report per node."""
        self.iteration += 1
        rows = {rank: self._row(rank) for rank in self.plan.world}
        self._is_first = False
        nodes: dict[str, list[int]] = {}
        for rank in self.plan.world:
            nodes.setdefault(self.node(rank), []).append(rank)
        return [self._report(node, ranks, rows) for node, ranks in nodes.items()]

    def node(self, rank: int) -> str:
        return f"n{rank // self.ranks_per_node}"

    def commands(self, mode: str = "initial") -> list[command._Command]:
        """What the scheduler would have sent before."""
        start = command.StartWorkers(node="n0", token=1, ranks=self.plan.world, spec=self.spec)
        apply = command.ApplyPlan(
            node="n0",
            token=1,
            mode=mode,  # type: ignore[arg-type]
            reconfiguration_id=self.reconfiguration_id,
            plan=self.plan.to_dict(),
            digest=self.plan.digest,
            store_address="127.0.0.1:1",
        )
        return [start, apply] if mode == "initial" else [apply]

    async def announce(self, bus: Bus, mode: str = "initial") -> None:
        for body in self.commands(mode):
            await bus.publish(self.envelope(body, f"{self.reconfiguration_id}-{body.schema_name}"), detail="n0")

    async def publish(self, bus: Bus, reports: Iterable[IterationReport]) -> None:
        for report in reports:
            name = f"{self.name}-{self.reconfiguration_id}-{report.iteration}-{report.node}"
            await bus.publish(self.envelope(report, name), detail=report.node)

    def envelope(self, body: command._Command | IterationReport, message_id: str) -> AnyEnvelope:
        return AnyEnvelope.of(
            body,
            job=self.name,
            source="agent-n0",
            incarnation="a1",
            epoch=self.plan.epoch,
            message_id=message_id.replace(".", "-"),
        )

    def _row(self, rank: int) -> Mapping[str, object]:
        position = self.plan.position(rank)
        p = self.speed.get(rank, 1.0)
        probed = self._is_first or position is None
        row: dict[str, object] = {
            "forward_s": 0.0,
            "backward_s": 0.0,
            "works": [],
            "probe_s": PROBE_S / p * self._scatter() if probed else 0.0,
        }
        if position is None:
            return row
        replica, s, member = position
        stages = self.plan.replicas[replica].stages
        cost = self._cost.stage_cost(stages[s], last=s == len(stages) - 1)
        # the stages of a replica see the same micro-batches
        rng = np.random.default_rng([self.seed, self.iteration, replica])
        works = []
        for _ in range(self.plan.num_units(replica, s)):
            lengths = rng.multinomial(128, rng.dirichlet(np.ones(rng.integers(1, 8))))
            works.append(MicroBatchWork.of(int(n) for n in lengths))
        for name, kind in (("forward_s", OpKind.FORWARD), ("backward_s", OpKind.BACKWARD)):
            row[name] = sum(cost.member_op_s(member, w, kind) for w in works) / p * self._scatter()
        return {**row, "works": works}

    def _scatter(self) -> float:
        return float(np.exp(self._rng.normal(0.0, self.noise)))

    def _report(self, node: str, ranks: list[int], rows: Mapping[int, Mapping[str, object]]) -> IterationReport:
        zeros = (0.0,) * len(ranks)
        works = {rank: list(rows[rank]["works"]) for rank in ranks}  # type: ignore[call-overload]
        due = self.iteration % 10 == 0
        return IterationReport(
            node=node,
            iteration=self.iteration,
            ranks=tuple(ranks),
            step_s=(0.4,) * len(ranks),
            forward_s=tuple(rows[rank]["forward_s"] for rank in ranks),  # type: ignore[misc]
            backward_s=tuple(rows[rank]["backward_s"] for rank in ranks),  # type: ignore[misc]
            tp_wait_s=tuple(self._tp_wait_s(rank, works[rank]) for rank in ranks),
            pp_wait_s=zeros,
            dp_wait_s=zeros,
            tokens=tuple(sum(w.tokens for w in works[rank]) for rank in ranks),
            sum_sq_len=tuple(sum(w.sum_sq_len for w in works[rank]) for rank in ranks),
            rss_bytes=(1 << 28,) * len(ranks),
            loss=3.0,
            global_tokens=1024,
            samples_expected=32,
            samples_once=32,
            unit_tokens=tuple(tuple(w.tokens for w in works[rank]) for rank in ranks),
            link_wait_s=tuple(self._edges_s(rank, works[rank]) for rank in ranks),
            probe_s=tuple(rows[rank]["probe_s"] for rank in ranks),  # type: ignore[misc]
            fingerprints=tuple(self._fingerprints(rank) if due else {} for rank in ranks),
            distances=tuple(self._distances(rank) if self.iteration == self.redone else {} for rank in ranks),
            virtual_clock=self.virtual_clock,
            reconfiguration_id=self.reconfiguration_id,
        )

    def _tp_wait_s(self, rank: int, works: list[MicroBatchWork]) -> float:
        """The last to arrive waits for the transfer alone; the others wait for it, too."""
        position = self.plan.position(rank)
        if position is None:
            return 0.0
        replica, s, member = position
        stage = self.plan.replicas[replica].stages[s]
        if len(stage.ranks) == 1:
            return 0.0
        layers = stage.layer_stop - stage.layer_start
        transfer_s = layers * (1e-4 * len(works) + 1e-7 * sum(w.tokens for w in works)) * self.links.get(rank, 1.0)
        late = np.random.default_rng([self.seed, self.iteration, replica, s]).integers(len(stage.ranks))
        idle_s = 0.0 if member == late else float(self._rng.exponential(5.0 * transfer_s))
        return transfer_s * self._scatter() + idle_s

    def _edges_s(self, rank: int, works: list[MicroBatchWork]) -> dict[str, float]:
        """Of its pipeline edges, as virtual links time them."""
        found = {}
        for a, replica in enumerate(self.plan.replicas):
            for s in range(len(replica.stages) - 1):
                for route in routes(self.plan, Place(a, s), Place(a, s + 1)):
                    ends = (route.source, route.destination)
                    if rank in ends:
                        start, stop = chunk_tokens(route.chunk, sum(w.tokens for w in works))
                        slower = max(self.edges.get(r, 1.0) for r in ends)
                        seconds = (5e-5 * len(works) + 1e-7 * (stop - start)) * slower * self._scatter()
                        found[edge_group_name(*ends, forward=True)] = seconds
        return found

    def _fingerprints(self, rank: int) -> dict[str, str]:
        position = self.plan.position(rank)
        if position is None:
            return {}
        _, stage, member = position
        return {f"bucket/s{stage}m{member}": self.digests.get(rank, "00ff")}

    def _distances(self, rank: int) -> dict[str, tuple[float, float, float]]:
        return {bucket: (self.distances.get(rank, 1e-3), 1e-5, 1e-9) for bucket in self._fingerprints(rank)}

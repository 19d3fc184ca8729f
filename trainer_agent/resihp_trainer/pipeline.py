"""Pipeline transfers between stages of any tensor-parallel degrees, as broadcasts in two-rank groups.

Shapes: T tokens, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from resihp_plan import ParallelPlan, Place, chunk_tokens, edge_group_name, needs_gather, routes
from resihp_trainer.comm.port import Group, Pending
from resihp_trainer.links import VirtualLinks


@dataclass
class Pipeline:
    """This rank's ends of its replica's pipeline edges. Sends run on; `finish` waits for them."""

    plan: ParallelPlan
    rank: int
    groups: Mapping[str, Group]
    tp_group: Group | None
    hidden: int
    dtype: torch.dtype
    accelerator: torch.device | None = None
    links: VirtualLinks | None = None
    _sent: list[Pending] = field(default_factory=list)

    def send(self, x_TD: Tensor, here: Place, there: Place) -> None:
        """Start sending this rank's chunks of `x_TD`, which is equal on all members of `here` and must not change until
        `finish`."""
        forward = there.stage > here.stage
        self._sent = [pending for pending in self._sent if not pending.is_done()]  # or they hold their activations
        for route in routes(self.plan, here, there):
            if route.source != self.rank:
                continue
            start, stop = chunk_tokens(route.chunk, len(x_TD))
            if start < stop:
                group = self.groups[edge_group_name(self.rank, route.destination, forward=forward)]
                self._sent.append(group.broadcast(x_TD[start:stop].contiguous(), self.rank))

    def receive(self, num_tokens: int, here: Place, there: Place) -> Tensor:
        """Wait for `[num_tokens, D]` from `there`: the same bits on every member of `here`."""
        x_TD = torch.empty(num_tokens, self.hidden, dtype=self.dtype, device=self.accelerator)
        all_routes = routes(self.plan, there, here)
        forward = there.stage < here.stage
        waiting: list[tuple[Pending, int, Tensor]] = []
        for route in all_routes:
            start, stop = chunk_tokens(route.chunk, num_tokens)
            if route.destination == self.rank and start < stop:
                group = self.groups[edge_group_name(route.source, self.rank, forward=forward)]
                part = x_TD[start:stop]
                waiting.append((group.broadcast(part, route.source), route.source, part))
        for pending, source, part in waiting:
            pending.wait()
            if self.links is not None:
                self.links.arrived(source, part.nbytes, forward=forward)
        senders, receivers = self._degree(there), self._degree(here)
        if needs_gather(senders, receivers):
            self._gather(x_TD, here, there)
        return x_TD

    def finish(self) -> None:
        """Wait for all sends of the iteration."""
        for pending in self._sent:
            pending.wait()
        self._sent.clear()

    def _degree(self, place: Place) -> int:
        return len(self.plan.replicas[place.replica].stages[place.stage].ranks)

    def _gather(self, x_TD: Tensor, here: Place, there: Place) -> None:
        """Fill in the rows that the other members received. All-gather wants equal shapes, so rows are padded."""
        assert self.tp_group is not None  # more than one receiver
        rows: dict[int, tuple[int, int]] = {}
        for route in routes(self.plan, there, here):
            start, stop = chunk_tokens(route.chunk, len(x_TD))
            first, _ = rows.get(route.destination, (start, stop))
            rows[route.destination] = (first, stop)
        longest = max(stop - start for start, stop in rows.values())
        parts = [x_TD.new_zeros(longest, self.hidden) for _ in self.tp_group.ranks]
        start, stop = rows[self.rank]
        mine = x_TD.new_zeros(longest, self.hidden)
        mine[: stop - start] = x_TD[start:stop]
        self.tp_group.all_gather(parts, mine).wait()
        for member, part in zip(self.tp_group.ranks, parts, strict=True):
            start, stop = rows[member]
            x_TD[start:stop] = part[: stop - start]

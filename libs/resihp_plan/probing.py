"""What to probe when somebody is suspected: the suspects, their peers, and the pipeline edges between them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from resihp_plan.edges import routes
from resihp_plan.groups import edge_places
from resihp_plan.plan import ParallelPlan


@dataclass(frozen=True)
class Probing:
    """Ranks that time a computation, and (sender, receiver) pairs that time a transfer."""

    ranks: tuple[int, ...]
    links: tuple[tuple[int, int], ...]


def probing(plan: ParallelPlan, suspects: Collection[int] = ()) -> Probing:
    """Suspects with everybody in their stage, over all replicas, and all forward edges that touch one of these; the
    whole world without suspects. Standby suspects are probed, too. Raises ValueError for a rank outside the world.
    """
    if strangers := sorted(set(suspects) - set(plan.world)):
        raise ValueError(f"ranks {strangers} are not in the plan's world {plan.world}")
    chosen = set(suspects) or set(plan.world)
    stages = {position[1] for rank in chosen if (position := plan.position(rank)) is not None}
    peers = {r for replica in plan.replicas for s, st in enumerate(replica.stages) if s in stages for r in st.ranks}
    ranks = chosen | peers
    edges = {(route.source, route.destination) for a, b in edge_places(plan) for route in routes(plan, a, b)}
    links = tuple(sorted(edge for edge in edges if ranks & set(edge)))
    return Probing(tuple(sorted(ranks | {rank for edge in links for rank in edge})), links)

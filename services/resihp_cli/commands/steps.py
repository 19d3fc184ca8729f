"""What a script asks for while a job runs: other plans, lost ranks back, nodes that die and return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from resihp_cli.client import GatewayClient, is_temporary
from resihp_cli.errors import CliError
from resihp_cli.fault_script import NodeStep, Rejoin, Switch
from resihp_cli.watch import JobWatch

NodeAction = Callable[[NodeStep], Awaitable[None]]
"""Kills or starts a local agent."""


class Steps:
    """Each step is taken once, as soon as its iteration is committed; `advance` is called again and again."""

    def __init__(
        self,
        client: GatewayClient,
        watch: JobWatch,
        note: Callable[[str], None],
        *,
        plans: Sequence[tuple[Switch, dict[str, Any]]] = (),
        rejoins: Sequence[Rejoin] = (),
        nodes: Sequence[NodeStep] = (),
        on_node: NodeAction | None = None,
    ) -> None:
        self._client, self._watch, self._note = client, watch, note
        self._plans, self._rejoins, self._nodes = list(plans), list(rejoins), list(nodes)
        self._on_node = on_node

    async def advance(self) -> None:
        """Take the steps that are due."""
        if self._watch.over:
            return
        await self._switch()
        await self._rejoin()
        await self._act_on_nodes()

    def left(self) -> list[str]:
        """What was not done before the job ended, in words."""
        steps = (
            [f"plan {s.path.name}@{s.iteration}" for s, _ in self._plans],
            [f"rejoin {r.rank}@{r.iteration}" for r in self._rejoins],
            [f"{n.kind} agent {n.agent}@{n.iteration}" for n in self._nodes],
        )
        return [text for group in steps for text in group]

    async def _switch(self) -> None:
        """Ask for the next plan; a refused one is counted against the run."""
        if not self._plans or self._watch.committed < self._plans[0][0].iteration:
            return
        switch, plan = self._plans[0]
        try:
            reason = f"script: {switch.path.name}@{switch.iteration}"
            await self._client.request_plan(self._watch.job_name, plan, reason)
        except CliError as error:
            if is_temporary(error):  # another change is open, or the scheduler is changing hands: ask again
                return
            self._note(f"  plan {switch.path.name} was refused: {error}")
        self._plans.pop(0)

    async def _rejoin(self) -> None:
        """Ask for lost ranks; who is not lost yet is asked for again."""
        for step in [r for r in self._rejoins if self._watch.committed >= r.iteration]:
            if not any(d.rank == step.rank and d.state == "lost" for d in self._watch.devices):
                continue
            try:
                await self._client.restart(self._watch.job_name, step.rank)
            except CliError as error:
                if not is_temporary(error):
                    self._note(f"  rank {step.rank} cannot come back yet: {error}")
                continue
            self._rejoins.remove(step)

    async def _act_on_nodes(self) -> None:
        while self._nodes and self._watch.committed >= self._nodes[0].iteration:
            step = self._nodes.pop(0)
            if self._on_node is not None:
                self._note(f"  {step.kind} agent {step.agent}")
                await self._on_node(step)

"""Verdicts and scores of slow devices, as the detector would publish them."""

from __future__ import annotations

from typing import Any

from resihp_bus import Bus
from resihp_messages import AnyEnvelope, event
from resihp_messages.report import HealthScores
from support.scripted_agent import say


async def declare_slow(
    bus: Bus, rank: int, p: float, *, job: str = "demo", error: float = 0.01, node: str = "b", **more: Any
) -> AnyEnvelope:
    """`DeviceSlow`; `error`: relative half width of the 95 % interval."""
    return await _declare(bus, event.DeviceSlow, "device_slow", rank, p, job=job, error=error, node=node, **more)


async def declare_recovered(bus: Bus, rank: int, *, job: str = "demo", node: str = "b", **more: Any) -> AnyEnvelope:
    return await _declare(
        bus, event.DeviceRecovered, "device_recovered", rank, 1.0, job=job, error=0.01, node=node, **more
    )


async def _declare(
    bus: Bus,
    kind: type[event.DeviceSlow] | type[event.DeviceRecovered],
    fault: Any,
    rank: int,
    p: float,
    *,
    job: str,
    error: float,
    node: str,
    **more: Any,
) -> AnyEnvelope:
    verdict = event.Verdict(
        fault=fault,
        ranks=(rank,),
        node=node,
        p=p,
        confidence=0.99,
        p_low=max(0.0, p * (1 - error)),
        p_high=min(1.0, p * (1 + error)),
    )
    body = kind(evidence={"iteration": 34, "first_iteration": 30}, verdict=verdict, advice="less work")
    name = kind.schema_name.partition(".")[0]
    return await say(bus, body, job=job, detail=name, source="detector", epoch=1, **more)


async def score(bus: Bus, rank: int, p: float, *, iteration: int, job: str = "demo", error: float = 0.01) -> None:
    """One iteration's `HealthScores` of a rank."""
    body = HealthScores(
        iteration=iteration,
        ranks=(rank,),
        p=(p,),
        p_low=(p * (1 - error),),
        p_high=(p * (1 + error),),
        confidence=(0.99,),
    )
    await say(bus, body, job=job, detail="HealthScores", source="detector", epoch=1)

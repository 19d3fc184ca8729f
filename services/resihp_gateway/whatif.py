"""`python -m resihp_gateway.whatif`: one what-if question as JSON on stdin, its answer as JSON on stdout.

A process of its own: planning for thousands of devices takes seconds of pure computing, which must not hold up the
event streams of the gateway; and a process can be stopped when nobody wants the answer any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_PARALLEL = 2


class WhatIfError(Exception):
    """No answer: `detail` says why; `busy` if asking again may help."""

    def __init__(self, detail: str, *, busy: bool = False) -> None:
        super().__init__(detail)
        self.busy = busy


@dataclass(frozen=True)
class Question:
    """What if these devices had these speeds?"""

    spec: Mapping[str, Any]
    """`JobSpec` as JSON."""
    plan: Mapping[str, Any]
    """In force."""
    nodes: Mapping[int, str]
    """Rank -> node, of the plan's world."""
    speeds: Mapping[int, float]
    """Rank -> p as it is now; missing: 1."""
    faults: Mapping[int, float]
    """Rank -> p of the healthy device; 0: lost."""
    horizon_s: float
    rebuild_s: float


async def ask(question: Question, *, timeout_s: float, slots: asyncio.Semaphore) -> dict[str, Any]:
    """Answer in another process, if one of the `slots` is free. Raises `WhatIfError`."""
    if slots.locked():
        raise WhatIfError("other what-if questions are being answered", busy=True)
    async with slots:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "resihp_gateway.whatif"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        raw = json.dumps(vars(question)).encode()
        try:
            async with asyncio.timeout(timeout_s):
                out, _ = await process.communicate(raw)
        except TimeoutError:
            raise WhatIfError(f"no answer within {timeout_s:g} s", busy=True) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        raise WhatIfError(f"the planner ended with status {process.returncode}") from None
    if "error" in answer:
        raise WhatIfError(str(answer["error"]))
    return answer


def paced(answer: Any, factor: float) -> Any:
    """The answer at another pace: throughputs times `factor`, iteration times over it. Pauses stay."""
    if isinstance(answer, list):
        return [paced(item, factor) for item in answer]
    if not isinstance(answer, dict):
        return answer
    powers = {"tokens_per_s": factor, "step_s": 1.0 / factor}
    found = {}
    for key, value in answer.items():
        power = next((p for ending, p in powers.items() if key.endswith(ending)), None)
        scaled = value * power if power is not None and isinstance(value, int | float) else paced(value, factor)
        found[key] = scaled
    return found


def answer(data: Mapping[str, Any]) -> dict[str, Any]:
    """Question as JSON -> `WhatIf.to_dict()`, or `{"error": sentence}`."""
    from resihp_messages import JobSpec
    from resihp_plan import Cluster, CostModel, Device, InvalidPlan, ModelSpec, ParallelPlan, Workload
    from resihp_plan.planner import Assumptions, Infeasible, Price
    from resihp_plan.planner.whatif import what_if

    try:
        spec = JobSpec.model_validate(data["spec"])
        model = ModelSpec(**spec.model.model_dump())
        # How fast a device is already counts as its peak: "now" is now, and the faults come on top.
        peaks = {r: p for r, p in data["speeds"].items() if r not in data["faults"] or p < data["faults"][r]}
        found = what_if(
            ParallelPlan.from_dict(data["plan"]),
            model,
            Cluster(tuple(Device(int(r), node, peak=peaks.get(r, 1.0)) for r, node in data["nodes"].items())),
            {int(r): min(1.0, float(p) / peaks.get(r, 1.0)) for r, p in data["faults"].items()},
            Workload.typical(spec.batch.micro_batches, spec.batch.tokens_per_micro_batch),
            clock=time.monotonic,
            assuming=Assumptions(
                CostModel.for_model(model, bytes_per_element=8 if spec.dtype == "float64" else 4),
                price=Price(data["horizon_s"], data["rebuild_s"]),
            ),
        )
    except (Infeasible, InvalidPlan, ValueError) as error:
        return {"error": str(error)}
    return found.to_dict()


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))

"""What a finished run amounts to: the numbers of `out.json`, and every promise that does not hold.

Pure functions of what the API answered, what was seen of the processes, and what the parity check said.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resihp_cli import adaptation
from resihp_cli.worker_probe import WorkerProbe
from resihp_gateway.decision_view import DecisionView
from resihp_gateway.models import DeviceView, IncidentView, IterationView, JobView, PlanView, ReconfigurationView
from resihp_messages import JobSpec

PARITY_LIMIT = {"float64": 1e-9, "float32": 1e-3}
"""Largest absolute difference of any parameter from the undisturbed run. In float32 another summation order is another
rounding, and AdamW amplifies it: the exact statement is the float64 one."""
REFERENCE = "undisturbed run of the same seed in one process"
FAULT_OF_KIND = {"kill": ("worker_lost", "node_lost"), "freeze": ("worker_frozen",)}
MIB = 1 << 20


@dataclass(frozen=True)
class RunFacts:
    """Everything that is known after a run."""

    spec: JobSpec
    job: JobView
    devices: Sequence[DeviceView]
    incidents: Sequence[IncidentView]
    reconfigurations: Sequence[ReconfigurationView]
    plans: Sequence[PlanView]
    iterations: Sequence[IterationView]
    probe: WorkerProbe
    decisions: Sequence[DecisionView] = ()
    """Newest first."""
    switches_asked: int = 0
    steps_left: tuple[str, ...] = ()
    """Scripted steps that were not taken."""
    parity: dict[str, Any] | None = None
    """Answer of `resihp_trainer.verify`; None if it was not asked for."""
    parity_asked: bool = False
    versions: dict[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """The document for `--json`, and the sentences that say what does not hold (empty: everything holds)."""

    document: dict[str, Any]
    failures: tuple[str, ...]


def judge(facts: RunFacts) -> Outcome:
    """Facts -> numbers and verdict."""
    samples = count_samples(facts.iterations, facts.job)
    applied = [r for r in facts.reconfigurations if r.status == "applied"]
    survivors = [d.rank for d in facts.devices if d.state != "lost" and d.start == 0]
    returned = [d.rank for d in facts.devices if d.state != "lost" and d.start > 0]
    unchanged = facts.probe.unchanged(survivors, since_iteration=_must_be_seen_at(facts))
    before, after = throughput(facts.iterations)
    document: dict[str, Any] = {
        "job": facts.job.job,
        "state": facts.job.state,
        "iterations": facts.spec.iterations,
        "committed": facts.job.committed,
        "dtype": facts.spec.dtype,
        "survivor_pids_unchanged": unchanged,
        "survivors": survivors,
        "returned": returned,
        "epochs": epochs(facts.plans, facts.iterations),
        "recoveries": [_recovery(r, facts.incidents) for r in applied if r.mode == "recovery"],
        "planned_changes": [_change(r) for r in applied if r.mode == "planned"],
        "incidents": adaptation.incidents(facts.incidents),
        "decisions": adaptation.decided(facts.decisions),
        "adaptation": adaptation.adaptation(facts.spec, facts.iterations),
        "faults": [{**f.model_dump(mode="json"), "fired": fired(f, facts.incidents)} for f in facts.spec.faults],
        "samples": samples,
        "parity": {"reference": "undisturbed run of the same seed, one process", **facts.parity}
        if facts.parity
        else None,
        "virtual_clock": facts.spec.clock.virtual,
        "throughput_tokens_per_s": {"before": before, "after": after},
        "worker_rss_mb": _memory(facts.probe),
        "median_iteration_s": _median([i.step_s for i in facts.iterations if i.step_s is not None]),
        "final_loss": facts.job.final_loss,
        "versions": facts.versions or {},
    }
    failures = tuple(_failures(facts, document))
    return Outcome({**document, "holds": not failures, "failures": list(failures)}, failures)


def _failures(facts: RunFacts, document: dict[str, Any]) -> list[str]:
    found = []
    if facts.job.state != "finished":
        found.append(f"the job is {facts.job.state}" + (f": {facts.job.reason}" if facts.job.reason else ""))
    if facts.job.committed != facts.spec.iterations:
        found.append(f"{facts.job.committed} of {facts.spec.iterations} iterations are committed")
    if not document["survivor_pids_unchanged"]:
        found.append("a surviving rank was not seen as one and the same process throughout")
    found += [
        f"the scripted fault {f['kind']} {f['rank']}@{f['iteration']}:{f['point']} left no incident"
        for f in document["faults"]
        if not f["fired"]
    ]
    samples = document["samples"]
    if samples["lost"] or samples["repeated"]:
        found.append(f"{samples['lost']} samples lost, {samples['repeated']} repeated")
    found += [f"reconfiguration {r.id} is still {r.status}" for r in facts.reconfigurations if r.status == "planned"]
    found += [
        f"reconfiguration {r.id}: proof {name} is false"
        for r in facts.reconfigurations
        for name, ok in r.proof.items()
        if not ok
    ]
    if len(document["planned_changes"]) < facts.switches_asked:
        found.append(f"{len(document['planned_changes'])} of {facts.switches_asked} planned changes were applied")
    found += [f"the job ended before this step of the script: {step}" for step in facts.steps_left]
    if facts.parity_asked:
        found += _parity_failures(facts)
    return found


def _parity_failures(facts: RunFacts) -> list[str]:
    difference = (facts.parity or {}).get("max_abs_diff")
    if difference is None:
        return ["the parity check gave no answer" + (f": {facts.parity['error']}" if facts.parity else "")]
    limit = PARITY_LIMIT[facts.spec.dtype]
    if (facts.parity or {}).get("replicas_equal") is False:
        return ["the replicas of the model do not have equal parameters"]
    if not difference <= limit:  # also true for not-a-number
        return [f"parameters differ from the undisturbed run by {difference:.3g} (limit {limit:g})"]
    return []


def count_samples(iterations: Sequence[IterationView], job: JobView) -> dict[str, int]:
    """Samples over the run. Each committed iteration's vote counted how often each document was used; an iteration with
    another count than one each would not have been committed, so losses show as iterations without a record."""
    by_number = {i.iteration: i for i in iterations}
    expected = sum(i.samples_expected for i in by_number.values())
    once = sum(i.samples_once for i in by_number.values())
    repeated = sum(i.samples_expected for i in iterations) - expected
    if job.samples_expected is not None and job.samples_once is not None:
        expected, once = max(expected, job.samples_expected), max(once, job.samples_once)
    return {"expected": expected, "seen_once": once, "lost": max(expected - once, 0), "repeated": repeated}


def throughput(iterations: Sequence[IterationView]) -> tuple[float | None, float | None]:
    """Tokens per second under the first and under the last plan; None where too little was run to say.

    The first iteration of a plan is left out: it carries warm-up, or the wait for the change itself.
    """
    ordered = sorted((i for i in iterations if i.step_s), key=lambda i: i.iteration)
    if not ordered:
        return None, None
    first, last = ordered[0].epoch, ordered[-1].epoch
    before = _rate([i for i in ordered if i.epoch == first][1:])
    return before, (_rate([i for i in ordered if i.epoch == last][1:]) if last != first else None)


def _rate(iterations: Sequence[IterationView]) -> float | None:
    seconds = sum(i.step_s or 0.0 for i in iterations)
    return sum(i.tokens for i in iterations) / seconds if seconds > 0 else None


def epochs(plans: Sequence[PlanView], iterations: Sequence[IterationView]) -> list[dict[str, Any]]:
    """Each plan with the iterations that were committed under it."""
    found = []
    for plan in sorted(plans, key=lambda p: p.epoch):
        numbers = [i.iteration for i in iterations if i.epoch == plan.epoch]
        found.append(
            {
                "epoch": plan.epoch,
                "digest": plan.digest,
                "first_iteration": min(numbers, default=None),
                "last_iteration": max(numbers, default=None),
            }
        )
    return found


def fired(fault: Any, incidents: Sequence[IncidentView]) -> bool:
    """Whether an incident of the right kind names the fault's rank. A slowness too small or too short to be noticed is
    none."""
    if fault.kind in ("slow", "slow_link"):
        return True
    return any(fault.rank in i.ranks and i.kind in FAULT_OF_KIND[fault.kind] for i in incidents)


def _must_be_seen_at(facts: RunFacts) -> int:
    """Survivors must have been seen when this many iterations were committed: after the last change of plan, unless so
    little was left that nobody could look in between."""
    starts = [e["first_iteration"] for e in epochs(facts.plans, facts.iterations) if e["first_iteration"]]
    last_start = max(starts, default=1)
    return last_start if facts.spec.iterations - last_start >= 3 else 0


def _recovery(r: ReconfigurationView, incidents: Sequence[IncidentView]) -> dict[str, Any]:
    incident = next((i for i in incidents if i.id == r.incident_id), None)
    ranks = list(incident.ranks) if incident else []
    return {
        "rank": ranks[0] if ranks else None,
        "ranks": ranks,
        "kind": incident.kind if incident else None,
        **_change(r),
    }


def _change(r: ReconfigurationView) -> dict[str, Any]:
    phases = {
        f"{phase}_s": r.phases_s.get(phase) for phase in ("detect", "plan", "abort", "rebuild", "move", "redo", "total")
    }
    return {
        "reconfiguration_id": r.id,
        "old_epoch": r.old_epoch,
        "new_epoch": r.new_epoch,
        "difference": r.difference,
        "reason": r.reason,
        **phases,
        "bytes_moved": r.bytes_moved,
        "lost_iterations": r.lost_iterations,
        "state_source": r.state_source,
        "proof": r.proof,
        "bound_tokens_per_s": r.bound_tokens_per_s,
        "predicted_tokens_per_s": r.predicted_tokens_per_s,
        "predicted_by": r.predicted_by,
        "achieved_tokens_per_s": r.achieved_tokens_per_s,
    }


def _memory(probe: WorkerProbe) -> dict[str, Any]:
    per_rank = {str(rank): round(seen.peak_rss_bytes / MIB, 1) for rank, seen in sorted(probe.history.items())}
    return {"max": max(per_rank.values(), default=None), "per_rank": per_rank}


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None

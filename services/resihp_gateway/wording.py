"""One sentence per event and one name per device, the same in every view."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from resihp_gateway.action_words import NO_REASON, asked_for, short
from resihp_gateway.models import DeviceView, EventView, Position, ReconfigurationView
from resihp_messages.job import ENDLESS

SECONDARY = frozenset({"WorkerExited", "WorkerStalled", "LinkBroken"})
"""Observations; the detector's verdict follows and says the same with its evidence."""
ALARMS = frozenset(
    {
        *("WorkerLost", "WorkerFrozen", "NodeLost", "LinkLost", "JobHung", "StateDiverged"),
        *("DeviceSlow", "LinkSlow", "JobSlow", "JobFailed", "ReconfigurationRejected", "CheckpointFailed"),
    }
)
BASIS = {"constants": "by measured constants", "pace": "at the job's pace", "nominal": "nominal"}
"""`ReconfigurationView.predicted_by` in words."""
GOOD = frozenset({"ReconfigurationApplied", "JobFinished", "DeviceRecovered", "LinkRecovered", "JobRecovered"})


def device_name(rank: int, position: Position | None) -> str:
    """`R1·S0·T1 (rank 5)`; a device without work has only its rank."""
    return f"{position_name(position)} (rank {rank})" if position else f"rank {rank}"


def position_name(position: Position | None) -> str:
    return f"R{position.replica}·S{position.stage}·T{position.tp_index}" if position else "-"


def names(devices: list[DeviceView]) -> dict[int, str]:
    """Name of each rank in the plan in force."""
    return {d.rank: device_name(d.rank, d.position) for d in devices}


def milliseconds(seconds: float | None) -> str:
    """`3.1 ms`, `1.24 s`; `-` for unknown."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


def size(size_bytes: int | None) -> str:
    """Bytes in the unit that keeps the number small."""
    if size_bytes is None:
        return "-"
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.3g} {unit}"


def predicted_rate(change: ReconfigurationView, unit: str = " tokens/s") -> str:
    """`1,113 tokens/s at the job's pace`, `17,894 tokens/s nominal`: and where it comes from, if that is known."""
    if change.predicted_tokens_per_s is None:
        return "-"
    return f"{change.predicted_tokens_per_s:,.0f}{unit} {BASIS.get(change.predicted_by, '')}".rstrip()


def signed(ratio: float, digits: int = 1) -> str:
    """`+5.0%`, `-0.3%`, `0.0%`: a difference that rounds to nothing has no sign."""
    text = f"{ratio:+.{digits}%}"
    return text if any(c in text for c in "123456789") else text[1:]


def exit_reason(code: int | None) -> str:
    """`killed by SIGKILL`, `exit code 1`."""
    if code is None:
        return "ended, exit code unknown"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"


def describe(event: EventView, device_names: Mapping[int, str] | None = None) -> str:
    """The event in one sentence."""
    known = device_names or {}

    def name(rank: int) -> str:
        return known.get(rank, f"rank {rank}")

    writer = _WRITERS.get(event.name)
    return writer(event.body, name) if writer else event.name


_Name = Callable[[int], str]


def _exited(b: Mapping[str, Any], name: _Name) -> str:
    fenced = ", fenced" if b.get("fenced") else ""
    return f"{name(b['rank'])}: process {b['pid']} {exit_reason(b.get('exit_code'))}{fenced}"


def _stalled(b: Mapping[str, Any], name: _Name) -> str:
    state = b["process_state"] or "?"
    return f"{name(b['rank'])}: no sign of life for {milliseconds(b['stalled_s'])}, process state {state}"


def _link(b: Mapping[str, Any], name: _Name) -> str:
    return f"{name(b['rank'])}: collective on {b['group']} failed without a known death"


def _verdict(what: str) -> Callable[[Mapping[str, Any], _Name], str]:
    def write(b: Mapping[str, Any], name: _Name) -> str:
        verdict, evidence = b["verdict"], b.get("evidence", {})
        who = ", ".join(name(r) for r in verdict["ranks"]) or f"node {verdict['node']}"
        noticed = evidence.get("detect_s")
        after = f" within {milliseconds(noticed)}" if isinstance(noticed, int | float) else ""
        return f"{who} {what}: noticed on {verdict['node']}{after}"

    return write


def _planned(b: Mapping[str, Any], _: _Name) -> str:
    return f"new plan: {b['difference'] or 'same layout'} ({b['reason']}), decided in {milliseconds(b['plan_s'])}"


def _applied(b: Mapping[str, Any], _: _Name) -> str:
    proof = (
        "proof holds"
        if all(b["proof"].values())
        else "PROOF FAILED: " + ", ".join(k for k, v in b["proof"].items() if not v)
    )
    lost = b.get("lost_iterations", 0)
    back = f" {went_back(lost, b['state_source'])}," if lost or b.get("state_source", "live") != "live" else ""
    total, moved = milliseconds(b["phases_s"].get("total")), size(b["bytes_moved"])
    return f"training goes on after {total},{back} {moved} moved, {proof}"


def went_back(lost: int, source: str) -> str:
    """`5 iterations lost (state from a snapshot)`."""
    return f"{lost} iteration{'s' if lost != 1 else ''} lost (state from a {source})"


def _judged(what: str) -> Callable[[Mapping[str, Any], _Name], str]:
    """For verdicts about speed or state: who, what, and how sure."""

    def write(b: Mapping[str, Any], name: _Name) -> str:
        verdict = b["verdict"]
        who = ", ".join(name(r) for r in verdict["ranks"]) or f"node {verdict['node']}"
        p = f" (p = {verdict['p']:.2f})" if 0.0 < verdict["p"] < 1.0 else ""
        sure = f", {min(verdict['confidence'], 0.9999):.2%} sure" if verdict["confidence"] < 1.0 else ""
        return f"{who} {what}{p}{sure}"

    return write


def _hung(b: Mapping[str, Any], name: _Name) -> str:
    who = ", ".join(name(r) for r in b["verdict"]["ranks"]) or "nobody in particular"
    return f"the job makes no progress; the others wait for {who}"


def _decided(b: Mapping[str, Any], _: _Name) -> str:
    what = {"act": "acts", "advise": "advises", "wait": "waits", "stay": "stays"}[b["action"]]
    plan = f": {b['difference']}" if b.get("difference") else ""
    return f"scheduler {what} on {b['trigger']}{plan} ({b['reason']})"


def _mode(b: Mapping[str, Any], name: _Name) -> str:
    held = ", changes that can wait are held" if b.get("held") else ""
    tripped = ", the breaker has tripped" if b.get("breaker_tripped") else ""
    evicted = f", evicted: {', '.join(name(r) for r in b['evicted'])}" if b.get("evicted") else ""
    changed = ", ".join(f"{k} {v:g}" for k, v in b.get("thresholds", {}).items())
    rules = f", thresholds: {changed}" if changed else ""
    return f"mode {b['mode']}{held}{tripped}{evicted}{rules}" + (f" ({b['reason']})" if b.get("reason") else "")


def _of(iterations: int, text: str) -> str:
    """Nothing for a job of another launcher, whose end nobody has told."""
    return text.format(iterations) if iterations < ENDLESS else ""


def _requested(b: Mapping[str, Any], _: _Name) -> str:
    why = f": {b['reason']}" if b["reason"] not in ("", NO_REASON) else ""
    return f"{b['actor']} asks for {asked_for(b['action'], b.get('parameters', {}))}{why}"


def _answered(b: Mapping[str, Any], _: _Name) -> str:
    answer = "accepted" if b["accepted"] else f"refused: {b.get('detail', '')}"
    return f"{short(b['action'])} of {b['actor']} {answer}"


def _evaluated(b: Mapping[str, Any], _: _Name) -> str:
    loss = f"{b['loss']:.4f}" if b["loss"] is not None else "not finite"
    return f"held-out loss {loss} after iteration {b['iteration']} ({b['tokens']} tokens, {milliseconds(b['seconds'])})"


def _not_written(b: Mapping[str, Any], name: _Name) -> str:
    what = f"checkpoint of iteration {b['iteration']} not written: {name(b['rank'])} on {b['node']}: {b['error']}"
    return f"{what}; training goes on, older checkpoints stay"


_WRITERS: dict[str, Callable[[Mapping[str, Any], _Name], str]] = {
    "NodeJoined": lambda b, _: f"node {b['node']} joined with {b['num_slots']} slots",
    "NodeLeft": lambda b, _: f"node {b['node']} left in order",
    "WorkerExited": _exited,
    "WorkerStalled": _stalled,
    "LinkBroken": _link,
    "WorkerLost": _verdict("stopped"),
    "WorkerFrozen": _verdict("frozen and fenced"),
    "NodeLost": _verdict("stopped with its node"),
    "LinkLost": _verdict("lost a link"),
    "WorkersAttached": lambda b, _: f"{len(b['ranks'])} ranks attached on {b['node']}",
    "WorkerResumed": lambda b, name: f"{name(b['rank'])} shows life again after {milliseconds(b['silent_s'])}",
    "WorkersHung": lambda b, _: f"no progress on {b['node']} for {milliseconds(b['quiet_s'])}",
    "JobHung": _hung,
    "DeviceSuspected": _judged("seems slow"),
    "DeviceSlow": _judged("is slow"),
    "DeviceRecovered": _judged("is as fast as before"),
    "LinkSlow": _judged("have a slow link"),
    "LinkRecovered": _judged("have their link back"),
    "JobSlow": lambda b, _: f"iterations take longer than their work explains (p = {b['verdict']['p']:.2f})",
    "JobRecovered": lambda b, _: "iterations take as long as their work explains again",
    "WorkloadShift": lambda b, _: "the work changed for all devices of a group: no fault",
    "HeterogeneityFound": _judged("differ for good: no fault"),
    "StateDiverged": _judged("hold a state that differs from its copies"),
    "StateCorrupted": _judged("held the damaged state, which is repaired"),
    "ValidationConcluded": lambda b, _: f"probes: {b['verdict']['fault'].replace('_', ' ')} ({b['advice']})",
    "DecisionMade": _decided,
    "DecisionClosed": lambda b, _: f"decision {b['outcome']}" + (f": {b['reason']}" if b.get("reason") else ""),
    "ModeChanged": _mode,
    "ActionRequested": _requested,
    "ActionAnswered": _answered,
    "JobSubmitted": lambda b, _: "job submitted" + _of(b["spec"].get("iterations", ENDLESS), ": {} iterations"),
    "JobStarted": lambda b, _: f"job started on {len(b['ranks'])} devices",
    "ReconfigurationPlanned": _planned,
    "ReconfigurationApplied": _applied,
    "ReconfigurationRejected": lambda b, _: f"plan refused: {b['reason']}",
    "ReconfigurationSuperseded": lambda b, _: f"plan superseded: {b['reason']}",
    "EvaluationFinished": _evaluated,
    "CheckpointFailed": _not_written,
    "JobFinished": lambda b, _: f"job finished: {b['committed']}{_of(b['iterations'], ' of {}')} iterations committed",
    "JobFailed": lambda b, _: f"job failed: {b['reason']}",
}
EVENTS = frozenset(_WRITERS)
"""Names of all events."""

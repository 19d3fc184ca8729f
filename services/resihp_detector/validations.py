"""Answers of probed ranks, collected until all who were asked have spoken, and what follows from them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import JsonValue

from resihp_detect.localise import Located, locate
from resihp_detector.verdicts import Conclusion, derived_id
from resihp_messages import AnyEnvelope, ack, event


@dataclass
class _Open:
    job: str
    epoch: int
    answers: dict[int, ack.ValidationResult] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        asked = next(iter(self.answers.values())).asked
        return set(asked) <= self.answers.keys()


@dataclass
class Validations:
    """By id. A validation that never becomes complete (a rank died) is forgotten when many newer ones have come."""

    max_open: int = 64
    _open: dict[str, _Open] = field(default_factory=dict)

    def take(self, envelope: AnyEnvelope, body: ack.ValidationResult) -> None:
        """One rank's answer. Idempotent."""
        known = self._open.setdefault(body.validation_id, _Open(envelope.job, envelope.epoch))
        known.answers[body.rank] = body
        while len(self._open) > self.max_open:
            del self._open[next(iter(self._open))]

    def due(self) -> tuple[Conclusion, ...]:
        """Of the complete ones that were not settled."""
        return tuple(_conclude(name, known) for name, known in self._open.items() if known.is_complete)

    def settled(self, message_id: str) -> None:
        """The conclusion with this id has been said."""
        for name in [n for n in self._open if validation_verdict_id(n) == message_id]:
            del self._open[name]


def validation_verdict_id(validation_id: str) -> str:
    return derived_id("validation", validation_id)


def _conclude(validation_id: str, known: _Open) -> Conclusion:
    answers = known.answers
    virtual = any(a.virtual_clock for a in answers.values())
    links: dict[tuple[int, int], tuple[float, ...]] = {}
    for answer in answers.values():
        for name, seconds in answer.link_s.items():
            sender, _, receiver = name.partition(">")
            edge = int(sender), int(receiver)
            links[edge] = (*links.get(edge, ()), seconds)
    # On a virtual clock devices are played, links are the host's own and mean nothing.
    found = locate({rank: a.compute_s for rank, a in answers.items()}, {} if virtual else links)
    ranks = found.devices or tuple(sorted({rank for edge in found.links for rank in edge}))
    evidence: dict[str, JsonValue] = {
        "validation_id": validation_id,
        "reported_by": "detector",
        "iteration": max(a.iteration for a in answers.values()),
        "compute_s": {str(rank): answers[rank].compute_s for rank in sorted(answers)},
        "link_s": {f"{a}>{b}": min(seen) for (a, b), seen in sorted(links.items())},
        "links": [f"{a}>{b}" for a, b in found.links],
        "virtual_clock": virtual,
    }
    body = event.ValidationConcluded(
        evidence=evidence,
        verdict=event.Verdict(
            fault="device_slow" if found.devices else "link_slow" if found.links else "nothing_found",
            ranks=ranks,
            node=answers[ranks[0]].node if ranks and ranks[0] in answers else "unknown",
            p=min(found.p, 1.0),
            confidence=0.95 if ranks else 0.5,
        ),
        advice=_advice(found),
    )
    return Conclusion(body, known.job, known.epoch, validation_verdict_id(validation_id), validation_id)


def _advice(found: Located) -> str:
    if found.devices:
        return f"give rank {', '.join(map(str, found.devices))} less work, or none"
    if found.links:
        return f"keep heavy traffic off the links {', '.join(f'{a}>{b}' for a, b in found.links)}"
    return "nothing to do: devices and links are equally fast"

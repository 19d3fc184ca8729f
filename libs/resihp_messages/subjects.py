"""Subjects: `resihp.v1.<job>.<kind>.<detail>`, built and parsed only here.

`detail` is the node for beats, reports, commands and acks, the schema name without its version for events and scores,
and the verb for requests. Streams and durable names also live here, so that no other room spells a subject.
"""

from __future__ import annotations

from dataclasses import dataclass

from resihp_messages.envelope import Kind

PREFIX = "resihp.v1"


@dataclass(frozen=True)
class Subject:
    """A parsed subject."""

    job: str
    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{PREFIX}.{self.job}.{self.kind}.{self.detail}"


def subject(job: str, kind: Kind, detail: str) -> str:
    """Build a subject. Raises ValueError if a part is not a single token."""
    for part in (job, detail):
        if not part or any(c in part for c in ".*> \t\r\n"):
            raise ValueError(f"not a subject token: {part!r}")
    return str(Subject(job, kind, detail))


def pattern(job: str = "*", kind: Kind | None = None, detail: str = ">") -> str:
    """A subscription pattern; `*` matches one token."""
    return f"{PREFIX}.{job}.{kind or '*'}.{detail}"


def parse(text: str) -> Subject:
    """Inverse of `subject`. Raises ValueError for a foreign subject."""
    head, _, rest = text.partition(f"{PREFIX}.")
    parts = rest.split(".")
    if head or len(parts) != 3 or not all(parts):
        raise ValueError(f"not a {PREFIX} subject: {text!r}")
    return Subject(parts[0], Kind(parts[1]), parts[2])


@dataclass(frozen=True)
class StreamSpec:
    """A JetStream stream. `max_age_s` 0 keeps for ever; a full stream drops its oldest messages."""

    name: str
    kind: Kind
    max_age_s: float
    max_bytes: int
    memory: bool = False


STREAMS: tuple[StreamSpec, ...] = (
    StreamSpec("RESIHP_EVENT", Kind.EVENT, 30 * 86400.0, 256 << 20),
    StreamSpec("RESIHP_COMMAND", Kind.COMMAND, 86400.0, 64 << 20),
    StreamSpec("RESIHP_ACK", Kind.ACK, 86400.0, 64 << 20),
    StreamSpec("RESIHP_REPORT", Kind.REPORT, 3600.0, 256 << 20),
    StreamSpec("RESIHP_SCORE", Kind.SCORE, 600.0, 64 << 20, memory=True),
)


def stream_of(kind: Kind) -> StreamSpec:
    """The stream that captures `kind`. Raises ValueError for kinds that are not stored (beats, requests)."""
    for spec in STREAMS:
        if spec.kind is kind:
            return spec
    raise ValueError(f"{kind} messages are not stored in a stream")

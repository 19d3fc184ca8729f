"""Who may say and hear what: the permissions of each identity on the message bus. Pure.

An identity is a process's name on the bus (`JetStreamBus.name`), and so the name of its inboxes: replies to one
identity can be read by no other. Agents run beside users' programs and are trusted least: an agent speaks only in the
name of its own node and only as agents do, reads only its own node's commands, and can make or change no stream.
Detector, scheduler and gateway are held to their part, but share readers' rights on the streams that they read.
docs/security.md says what follows and what does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from resihp_messages import STREAMS, Body, Kind, pattern, stream_of
from resihp_messages.event import asked, concluded, decided, observed

_API = "$JS.API"
_SHELF = "OBJ_RESIHP_KEPT"
_PROBE = "Probe"


@dataclass(frozen=True)
class Identity:
    """What one name may publish and subscribe to; everything else is forbidden."""

    name: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    answers: bool = False
    """Whether it may answer requests, once each, wherever their askers wait."""

    @property
    def inbox(self) -> str:
        return f"_INBOX_{self.name}.>"

    def permissions(self) -> dict[str, object]:
        """As nats-server's configuration takes them."""
        allowed: dict[str, object] = {"publish": list(self.publish), "subscribe": [self.inbox, *self.subscribe]}
        return allowed | ({"allow_responses": {"max": 1, "expires": "1m"}} if self.answers else {})


def agent(node: str) -> Identity:
    """The agent of one node. Raises ValueError if the node is not a single token."""
    node = _token(node)
    own = [pattern(kind=kind, detail=node) for kind in (Kind.BEAT, Kind.REPORT, Kind.ACK)]
    commands = _durable(f"agent-{node}", Kind.COMMAND, detail=node)
    return Identity(
        f"agent-{node}",
        (*own, *_events(observed), *_look(), *commands),
        (pattern(kind=Kind.EVENT, detail="*"),),
    )


def detector() -> Identity:
    """Reads everything, says verdicts and scores."""
    probe = pattern(kind=Kind.REQUEST, detail=_PROBE)
    read = [_reader(kind) for kind in (Kind.EVENT, Kind.ACK, Kind.COMMAND, Kind.REPORT)]
    return Identity(
        "detector",
        (
            *_events(concluded),
            pattern(kind=Kind.SCORE, detail="*"),
            probe,
            *_look(),
            *(subject for reader in read for subject in reader),
            *_durable("detector-event", Kind.EVENT),
            *_shelf(),
        ),
        (probe, *(pattern(kind=kind, detail="*") for kind in (Kind.BEAT, Kind.ACK, Kind.EVENT))),
        answers=True,
    )


def scheduler() -> Identity:
    """Decides: the only source of commands, and the one that makes the streams."""
    made = [spec.name for spec in STREAMS] + [_SHELF]
    return Identity(
        "scheduler",
        (
            pattern(kind=Kind.COMMAND, detail="*"),
            *_events(decided),
            *_look(),
            *(f"{_API}.STREAM.{verb}.{name}" for verb in ("CREATE", "UPDATE") for name in made),
            f"{_API}.STREAM.INFO.{_SHELF}",
            *_durable("scheduler-event", Kind.EVENT),
            *_durable("scheduler-ack", Kind.ACK),
            *_reader(Kind.REPORT),
        ),
        (pattern(kind=Kind.SCORE, detail="*"), *(pattern(kind=Kind.REQUEST, detail=verb) for verb in verbs())),
        answers=True,
    )


def gateway() -> Identity:
    """Asks the scheduler in the name of people, keeps the audit trail, shows events, scores and beats.

    Its webhooks are durable readers whose names an operator chooses: any reader of the event stream may be its own.
    """
    return Identity(
        "gateway",
        (
            *(pattern(kind=Kind.REQUEST, detail=verb) for verb in verbs()),
            *_events(asked),
            *_look(),
            *_reader(Kind.SCORE),
            *_reader(Kind.EVENT),
            *_durable("*", Kind.EVENT),
        ),
        (pattern(kind=Kind.BEAT, detail="*"), pattern(kind=Kind.EVENT, detail="*")),
    )


def reader(name: str) -> Identity:
    """A program that follows events: what happens now, or from a position on with a stored reader of its own name.

    Says nothing: actions go through the gateway. Raises ValueError if the name is not a single token.
    """
    return Identity(
        _token(name),
        (*_look(), *_durable(name, Kind.EVENT), f"{_API}.CONSUMER.DELETE.{stream_of(Kind.EVENT).name}.{name}"),
        tuple(pattern(kind=kind, detail="*") for kind in (Kind.EVENT, Kind.SCORE, Kind.BEAT)),
    )


def operator() -> Identity:
    """People at a terminal: `resihp doctor --bus`, examples/subscribe.py."""
    return reader("operator")


def services() -> tuple[Identity, ...]:
    """Everybody but agents and further readers."""
    return (detector(), scheduler(), gateway(), operator())


def verbs() -> tuple[str, ...]:
    """What the scheduler can be asked for."""
    names = {b.schema_name.rpartition(".")[0] for b in Body.registry.values() if b.kind is Kind.REQUEST}
    return tuple(sorted(names - {_PROBE}))


def _token(name: str) -> str:
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise ValueError(f"not a name: {name!r} (letters, digits, - and _)")
    return name


def _events(group: ModuleType) -> list[str]:
    """The events of one module of `resihp_messages.event`: they are grouped by who says them."""
    said = sorted(b.schema_name.rpartition(".")[0] for b in Body.registry.values() if b.__module__ == group.__name__)
    return [pattern(kind=Kind.EVENT, detail=name) for name in said]


def _look() -> list[str]:
    """Whether the streams are there."""
    return [f"{_API}.STREAM.INFO.{spec.name}" for spec in STREAMS]


def _durable(name: str, kind: Kind, detail: str = "*") -> list[str]:
    """Make, find and rewind one durable reader with exactly this filter, fetch from it and acknowledge."""
    stream = stream_of(kind).name
    return [
        f"{_API}.CONSUMER.CREATE.{stream}.{name}.{pattern(kind=kind, detail=detail)}",
        *(f"{_API}.CONSUMER.{verb}.{stream}.{name}" for verb in ("INFO", "RESET", "MSG.NEXT")),
        f"$JS.ACK.{stream}.{name}.>",
    ]


def _reader(kind: Kind) -> list[str]:
    """Replays: readers with names of the moment. Permissions know whole tokens only, hence any name."""
    stream = stream_of(kind).name
    return [
        f"{_API}.CONSUMER.CREATE.{stream}.*.{pattern(kind=kind, detail='*')}",
        *(f"{_API}.CONSUMER.{verb}.{stream}.*" for verb in ("MSG.NEXT", "DELETE")),
    ]


def _shelf() -> list[str]:
    """What is kept between two starts (`Bus.keep`): one object store."""
    return [
        "$O.RESIHP_KEPT.>",
        f"{_API}.STREAM.NAMES",
        *(f"{_API}.STREAM.{verb}.{_SHELF}" for verb in ("INFO", "PURGE", "MSG.GET")),
        *(f"{_API}.{what}.{_SHELF}{end}" for what in ("DIRECT.GET", "CONSUMER.CREATE") for end in ("", ".>")),
        f"{_API}.CONSUMER.DELETE.{_SHELF}.*",
        f"$JS.FC.{_SHELF}.>",
    ]

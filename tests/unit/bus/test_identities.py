"""Permissions without a server: complete, disjoint, and what the code says; and the folder of keys."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest

from resihp_bus import KeyFolder, KeysError, identities
from resihp_bus.certificate import CertificateError, make_certificate
from resihp_bus.memory import matches
from resihp_messages import Body, Kind, subject
from resihp_scheduler.requests import VERBS

ROOT = Path(__file__).parents[3]
EVENTS = {b.__name__ for b in Body.registry.values() if b.kind is Kind.EVENT}
ROOMS = {
    "services/resihp_detector": identities.detector(),
    "services/resihp_scheduler": identities.scheduler(),
    "services/resihp_gateway": identities.gateway(),
    "trainer_agent/resihp_agent": identities.agent("n0"),
}


def may_publish(identity: identities.Identity, to: str) -> bool:
    return any(matches(allowed, to) for allowed in identity.publish)


def events_made(room: Path) -> set[str]:
    """Events that a room's code builds (not those that it only recognises)."""
    made = set()
    for file in room.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                made |= {name} & EVENTS
    return made


@pytest.mark.parametrize("room", ROOMS)
def test_every_event_that_a_room_makes_may_be_published_by_it(room: str) -> None:
    made = events_made(ROOT / room)
    assert made
    assert {n for n in made if not may_publish(ROOMS[room], subject("demo", Kind.EVENT, n))} == set()


def test_every_event_has_exactly_one_kind_of_speaker() -> None:
    for name in EVENTS:
        to = subject("demo", Kind.EVENT, name)
        assert sum(may_publish(identity, to) for identity in ROOMS.values()) == 1, name


def test_only_the_scheduler_commands_and_only_the_gateway_asks() -> None:
    command = subject("demo", Kind.COMMAND, "n0")
    everybody = [*ROOMS.values(), identities.operator()]
    assert [i.name for i in everybody if may_publish(i, command)] == ["scheduler"]
    assert set(identities.verbs()) == set(VERBS)
    for verb in VERBS:
        asked = subject("demo", Kind.REQUEST, verb)
        assert [i.name for i in everybody if may_publish(i, asked)] == ["gateway"]


def test_names_that_would_widen_a_permission_are_refused() -> None:
    for name in ("", "*", ">", "n0.>", "a b", "ä"):
        with pytest.raises(ValueError, match="not a name"):
            identities.agent(name)
        with pytest.raises(ValueError, match="not a name"):
            identities.reader(name)


def test_keys_are_kept_added_rotated_and_removed(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    names = [identity.name for identity in keys.init(["n0"], readers=["pager"])]
    assert names == ["detector", "scheduler", "gateway", "operator", "agent-n0", "pager"]
    first = keys.public_keys()
    assert stat.S_IMODE((keys.path / "agent-n0" / "seed.nk").stat().st_mode) == 0o600
    assert all(public in keys.config.read_text() for public in first.values())
    assert not any((keys.path / n / "seed.nk").read_text().strip() in keys.config.read_text() for n in names)

    keys.init(["n1"], rotate=["agent-n0"])
    second = keys.public_keys()
    assert set(second) == {*names, "agent-n1"}
    assert {name for name in names if first[name] != second[name]} == {"agent-n0"}
    assert first["agent-n0"] not in keys.config.read_text()

    for name in ("agent-n1", "pager"):
        keys.remove(name)
    keys.init([])
    assert set(keys.public_keys()) == {*names} - {"pager"}
    assert second["agent-n1"] not in keys.config.read_text()
    with pytest.raises(KeysError, match="there are agent-n0"):
        keys.remove("scheduler")


def test_a_broken_seed_and_a_bad_host_are_named(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path)
    keys.init([])
    (tmp_path / "gateway" / "seed.nk").write_text("SUnonsense")
    with pytest.raises(KeysError, match=r"gateway/seed\.nk: not a seed"):
        keys.init([])
    with pytest.raises(CertificateError, match="not a host name"):
        make_certificate(tmp_path / "c", tmp_path / "k", ["a,DNS:b"])


def test_a_certificate_is_valid_for_its_names(tmp_path: Path) -> None:
    import ssl

    keys = KeyFolder(tmp_path)
    keys.init(["n0"], tls_hosts=["nats", "127.0.0.1"], server_path="/etc/resihp/keys")
    assert '"cert_file": "/etc/resihp/keys/cert.pem"' in keys.config.read_text()
    assert stat.S_IMODE((tmp_path / "server" / "key.pem").stat().st_mode) == 0o600
    trusted = ssl.create_default_context(cafile=str(tmp_path / "agent-n0" / "ca.pem")).get_ca_certs()
    assert trusted[0]["subjectAltName"] == (("DNS", "nats"), ("IP Address", "127.0.0.1"))  # type: ignore[typeddict-item]

"""What was agreed on the wire stays readable, and what we write is what was agreed."""

from __future__ import annotations

import json

import pytest

from resihp_messages import AnyEnvelope, decode, encode
from resihp_messages.envelope import Body
from support.golden import FOLDER, golden_envelope, golden_text, path_of
from support.samples import BODIES

SCHEMAS = {body.schema_name: body for body in BODIES}


def test_every_schema_has_a_sample_and_a_golden_file() -> None:
    assert set(SCHEMAS) == set(Body.registry)
    assert {path.stem for path in FOLDER.glob("*.json")} == set(Body.registry)


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_golden_file_is_what_we_write(schema: str) -> None:
    """If this fails on purpose: `cd tests && python -m support.golden` (and read its docstring first)."""
    body = SCHEMAS[schema]
    assert path_of(body).read_text() == golden_text(golden_envelope(body))


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_golden_bytes_are_read_as_the_sample(schema: str) -> None:
    raw = bytes.fromhex(json.loads(path_of(SCHEMAS[schema]).read_text())["msgpack_hex"])
    envelope: AnyEnvelope = decode(raw)
    assert envelope == golden_envelope(SCHEMAS[schema])
    assert type(envelope.body) is Body.registry[schema]
    assert encode(envelope) == raw


def test_every_schema_name_has_a_version_and_its_class_name() -> None:
    for name, body_class in Body.registry.items():
        assert name == f"{body_class.__name__}.v1"
        assert body_class.__doc__ is not None

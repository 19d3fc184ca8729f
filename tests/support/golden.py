"""Golden files of the wire contract: one per schema version, JSON for people and the exact bytes.

`python -m support.golden` (in tests/) writes them, and docs/messages.md, anew. Do that only together with a deliberate
change of the contract: an added optional field keeps the version, anything else needs a new one (and keeps the old
file).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from resihp_messages import AnyEnvelope, Envelope, catalogue, encode
from resihp_messages.envelope import Body
from support.samples import BODIES

FOLDER = Path(__file__).parents[1] / "golden" / "messages"
PAGE = Path(__file__).parents[2] / "docs" / "messages.md"


def golden_envelope(body: Body) -> AnyEnvelope:
    """The sample in a fixed header."""
    header: dict[str, Any] = {
        "message_id": "00000000000000000000000000000001",
        "schema": body.schema_name,
        "job": "demo",
        "epoch": 1,
        "source": "golden",
        "incarnation": "00000000000000000000000000000002",
        "correlation_id": "incident-1",
        "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC),
    }
    return Envelope[Body].model_validate({**header, "body": body})


def golden_text(envelope: AnyEnvelope) -> str:
    """The content of a golden file."""
    content = {
        "envelope": envelope.model_dump(mode="json", by_alias=True),
        "msgpack_hex": encode(envelope).hex(),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def path_of(body: Body) -> Path:
    return FOLDER / f"{body.schema_name}.json"


def write_all() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for body in BODIES:
        path_of(body).write_text(golden_text(golden_envelope(body)))
    PAGE.write_text(catalogue.markdown())


if __name__ == "__main__":
    write_all()

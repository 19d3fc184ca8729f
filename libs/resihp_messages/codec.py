"""MessagePack on the wire, validated by pydantic on receipt.

Defined answers: numpy scalars and arrays become plain numbers and lists; NaN and infinity are refused by the models
(`Finite`, `Seconds`) on both sides; truncated, trailing, oversized or unknown input raises `MalformedMessage`, never
anything else. No pickle, no extension types.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
from pydantic import BaseModel, ValidationError

from resihp_messages.envelope import AnyEnvelope, Body, Envelope

MAX_MESSAGE_BYTES = (1 << 20) - 1024
"""A little less than nats-server's default `max_payload`, which counts the headers too."""

M = TypeVar("M", bound=BaseModel)


class MalformedMessage(ValueError):
    """Bytes that are not a valid message of this contract; the text says why."""


def _plain(value: Any) -> Any:
    """Models -> their fields; numpy scalars and arrays -> Python numbers and lists, without importing numpy."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot put {type(value).__name__} on the wire")


def pack(value: Any) -> bytes:
    """Plain data -> MessagePack. Raises `MalformedMessage` for what has no place on the wire or is too large."""
    try:
        raw = msgpack.packb(value, default=_plain, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedMessage(f"cannot encode: {error}") from error
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"message of {len(raw)} bytes exceeds {MAX_MESSAGE_BYTES}")
    return bytes(raw)


def unpack(raw: bytes) -> Any:
    """MessagePack -> plain data. Raises `MalformedMessage` for truncated, trailing or oversized input."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessage(f"message of {len(raw)} bytes exceeds {MAX_MESSAGE_BYTES}")
    try:
        return msgpack.unpackb(raw, raw=False, strict_map_key=True)
    except Exception as error:  # msgpack raises several unrelated classes for broken input
        raise MalformedMessage(f"not MessagePack: {type(error).__name__}: {error}") from error


def validate(model: type[M], data: Any) -> M:
    """Plain data -> model, with the first violated rule in one line."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        raise MalformedMessage(f"{model.__name__}: {where}: {first['msg']}") from error


def encode(envelope: Envelope[Any]) -> bytes:
    """Envelope -> bytes."""
    return pack(envelope.model_dump(mode="json", by_alias=True))


def decode(raw: bytes) -> AnyEnvelope:
    """Bytes -> envelope with a body of its registered class. Raises `MalformedMessage` and nothing else."""
    data = unpack(raw)
    if not isinstance(data, dict):
        raise MalformedMessage(f"expected a map, got {type(data).__name__}")
    schema = data.get("schema")
    body_class = Body.registry.get(schema) if isinstance(schema, str) else None
    if body_class is None:
        raise MalformedMessage(f"unknown schema {schema!r}")
    body = validate(body_class, data.get("body"))
    return validate(Envelope[Body], {**data, "body": body})

"""What a process keeps on the server between two of its starts: named bytes, replaced as a whole (object store).

Each new version is written beside the old one and then named, so a process that is killed in between leaves the old
one. Left-overs and what nobody renews go away after a day.
"""

from __future__ import annotations

import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError, ObjectDeletedError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

from resihp_bus.port import BusUnavailable
from resihp_bus.settings import JetStreamSettings

BUCKET = "RESIHP_KEPT"
MAX_AGE_S = 86400.0
MAX_BYTES = 64 << 20
_ERRORS = (nats.errors.Error, OSError, TimeoutError)


async def put(js: JetStreamContext, settings: JetStreamSettings, name: str, data: bytes) -> None:
    """Raises `BusUnavailable` if it is not known to be stored."""
    try:
        await (await _bucket(js, settings)).put(name, data)
    except _ERRORS as error:
        raise BusUnavailable(f"{BUCKET}/{name}: {error or type(error).__name__}") from error


async def get(js: JetStreamContext, settings: JetStreamSettings, name: str) -> bytes | None:
    """None if there is nothing of this name. Raises `BusUnavailable`."""
    try:
        return bytes((await (await _bucket(js, settings)).get(name)).data or b"")
    except (ObjectNotFoundError, ObjectDeletedError):
        return None
    except _ERRORS as error:
        raise BusUnavailable(f"{BUCKET}/{name}: {error or type(error).__name__}") from error


async def ensure(js: JetStreamContext, settings: JetStreamSettings) -> None:
    """Make the bucket exist, for identities that may not. Raises nats errors."""
    await _bucket(js, settings)


async def _bucket(js: JetStreamContext, settings: JetStreamSettings) -> ObjectStore:
    try:
        return await js.object_store(BUCKET)
    except NotFoundError:
        if not settings.provision:
            raise
    try:
        return await js.create_object_store(BUCKET, ttl=MAX_AGE_S, max_bytes=MAX_BYTES, replicas=settings.replicas)
    except APIError:  # another process was first
        return await js.object_store(BUCKET)

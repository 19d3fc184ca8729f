"""The streams of `resihp_messages.STREAMS` on a JetStream server: created and updated idempotently."""

from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, BadRequestError, NotFoundError, ServerError

from resihp_bus import shelf
from resihp_bus.port import BusRefused
from resihp_bus.settings import JetStreamSettings
from resihp_messages import STREAMS, StreamSpec, pattern

_COMPARED = ("subjects", "max_age", "max_bytes", "duplicate_window", "num_replicas")
_STREAM_NAME_IN_USE = 10058


def stream_config(spec: StreamSpec, settings: JetStreamSettings) -> StreamConfig:
    """The server-side configuration of one stream."""
    window = settings.duplicate_window_s
    return StreamConfig(
        name=spec.name,
        subjects=[pattern(kind=spec.kind, detail="*")],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.OLD,
        max_age=spec.max_age_s,
        max_bytes=spec.max_bytes,
        storage=StorageType.MEMORY if spec.memory else StorageType.FILE,
        num_replicas=settings.replicas,
        # the server refuses a window longer than the messages live
        duplicate_window=min(window, spec.max_age_s) if spec.max_age_s else window,
    )


async def ensure_streams(js: JetStreamContext, settings: JetStreamSettings) -> None:
    """Make every stream exist as specified. Several processes may do it at once.

    Raises `BusRefused` if the server says no for good; connection errors of the client pass through.
    """
    for spec in STREAMS:
        wanted = stream_config(spec, settings)
        try:
            await _ensure(js, spec.name, wanted, provision=settings.provision)
        except (BadRequestError, ServerError, NotFoundError) as error:
            raise BusRefused(f"stream {spec.name}: {error.description or error}") from error
    if settings.provision and settings.keys is not None:
        await shelf.ensure(js, settings)  # identities that use it may not make it


async def _ensure(js: JetStreamContext, name: str, wanted: StreamConfig, *, provision: bool) -> None:
    try:
        existing = (await js.stream_info(name)).config
    except NotFoundError:
        if not provision:
            raise
        try:
            await js.add_stream(wanted)
        except APIError as error:
            if error.err_code != _STREAM_NAME_IN_USE:
                raise
            existing = (await js.stream_info(name)).config  # another process was first, with other limits
        else:
            return
    if provision and any(getattr(existing, key) != getattr(wanted, key) for key in _COMPARED):
        await js.update_stream(wanted)

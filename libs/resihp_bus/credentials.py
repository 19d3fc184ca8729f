"""Who a connection says it is: the seed and the trusted certificate in its identity's folder."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from resihp_bus.keys import CA, SEED, KeysError, public_key
from resihp_bus.port import BusRefused
from resihp_bus.settings import JetStreamSettings


def credentials(settings: JetStreamSettings, name: str) -> dict[str, Any]:
    """Options of the client for `settings.keys` and `settings.tls_ca`. Raises `BusRefused` if they cannot be used."""
    folder = settings.keys / name if settings.keys is not None else None
    options: dict[str, Any] = {}
    if folder is not None:
        options["nkeys_seed"] = str(_seed(folder / SEED, name))
    ca = settings.tls_ca or (folder / CA if folder is not None and (folder / CA).is_file() else None)
    if ca is not None:
        try:
            options["tls"] = ssl.create_default_context(cafile=str(ca))
        except (OSError, ssl.SSLError) as error:
            raise BusRefused(f"{ca}: not a certificate: {error}") from error
    return options


def _seed(file: Path, name: str) -> Path:
    try:
        public_key(file)
    except KeysError as error:
        raise BusRefused(f"bus identity {name}: {error}; `resihp keys init` makes it") from error
    return file

"""A certificate for a nats-server that has none from elsewhere: self-signed, by the `openssl` program.

It is its own authority: identities trust exactly this certificate, so there is no key of an authority to lose.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

DAYS = 825


class CertificateError(Exception):
    """openssl is missing or refused."""


def make_certificate(certificate: Path, key: Path, hosts: Iterable[str]) -> None:
    """Write both files (key: mode 600), valid for these host names and addresses. Raises `CertificateError`."""
    names = [_name(host) for host in hosts]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", str(DAYS), "-subj", "/CN=resihp-nats", "-addext", f"subjectAltName={','.join(names)}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    key.unlink(missing_ok=True)
    os.close(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # openssl keeps the rights of a file
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CertificateError(f"openssl cannot be run (install it, or bring a certificate): {error}") from error
    if done.returncode:
        raise CertificateError(f"openssl: {done.stderr.strip()[-300:]}")


def _name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if not host.replace("-", "").replace(".", "").isalnum():
            raise CertificateError(f"not a host name or address: {host!r}") from None
        return f"DNS:{host}"

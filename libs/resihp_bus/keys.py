"""The folder of `resihp keys init`: a secret seed for each identity, and what nats-server must know about them.

    keys/server/auth.conf          public keys and permissions; nats.conf includes it
    keys/server/cert.pem, key.pem  only with TLS
    keys/<identity>/seed.nk        mode 600: whoever has it is that identity
    keys/<identity>/ca.pem         only with TLS: what the identity trusts

Each folder can be given to one process alone (a volume, a secret). Seeds that exist are kept.
Errors: `KeysError` (a folder that cannot be written or read, a broken seed, a bad name).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

import nkeys

from resihp_bus import identities
from resihp_bus.certificate import CertificateError, make_certificate
from resihp_bus.identities import Identity

SEED, CA, CONFIG = "seed.nk", "ca.pem", "auth.conf"
SERVER = "server"


class KeysError(Exception):
    """The keys cannot be made or used; the text says which file and why."""


class KeyFolder:
    """One fleet's keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config(self) -> Path:
        """What nats-server's configuration includes."""
        return self.path / SERVER / CONFIG

    def agents(self) -> list[str]:
        """Nodes whose agents have keys here."""
        return sorted(p.parent.name.removeprefix("agent-") for p in self.path.glob(f"agent-*/{SEED}"))

    def readers(self) -> list[str]:
        """Further programs that follow events."""
        ours = {identity.name for identity in identities.services()}
        return sorted(
            name
            for name in (p.parent.name for p in self.path.glob(f"*/{SEED}"))
            if name not in ours and not name.startswith("agent-")
        )

    def init(
        self,
        nodes: Collection[str],
        *,
        readers: Collection[str] = (),
        rotate: Collection[str] = (),
        tls_hosts: Collection[str] = (),
        server_path: str | None = None,
        owner: int | None = None,
    ) -> list[Identity]:
        """Make missing seeds, replace those of `rotate`, and write the server's file anew. Returns all identities.

        `nodes` and `readers` are added to those that have keys already. `server_path`: where nats-server will find the
        server's folder (for its certificate), if not here. `owner`: user id that gets the seeds (needs root).
        Raises `KeysError`.
        """
        try:
            known = self._known(nodes, readers)
            if unknown := set(rotate) - {identity.name for identity in known}:
                names = ", ".join(identity.name for identity in known)
                raise KeysError(f"no identity {sorted(unknown)[0]!r}; there are {names}")
            for identity in known:
                self._seed(identity.name, anew=identity.name in rotate, owner=owner)
            (self.path / SERVER).mkdir(exist_ok=True)
            if tls_hosts:
                self._certificate(tls_hosts, [identity.name for identity in known], owner)
            _replace(self.config, self._config(known, server_path or str(self.path.absolute() / SERVER)), mode=0o644)
        except (OSError, ValueError, CertificateError) as error:
            raise KeysError(str(error)) from error
        return known

    def public_keys(self) -> dict[str, str]:
        """By identity. Raises `KeysError`."""
        return {file.parent.name: public_key(file) for file in sorted(self.path.glob(f"*/{SEED}"))}

    def remove(self, name: str) -> None:
        """Forget an agent or reader: after the next `init` and reload its key opens nothing. Raises `KeysError`."""
        others = [*(f"agent-{node}" for node in self.agents()), *self.readers()]
        if name not in others:
            raise KeysError(f"no agent or reader {name!r} in {self.path}; there are {', '.join(others) or 'none'}")
        (self.path / name / SEED).unlink()

    def _known(self, nodes: Collection[str], readers: Collection[str]) -> list[Identity]:
        """Raises ValueError for a name that is no token or means something else."""
        agents = [identities.agent(node) for node in sorted({*self.agents(), *nodes})]
        taken = {SERVER, *(identity.name for identity in identities.services())}
        if wrong := [name for name in readers if name in taken or name.startswith("agent-")]:
            raise ValueError(f"reader {wrong[0]!r}: the name is taken")
        return [*identities.services(), *agents, *map(identities.reader, sorted({*self.readers(), *readers}))]

    def _seed(self, name: str, *, anew: bool, owner: int | None) -> None:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / SEED
        if anew or not file.exists():
            _replace(file, nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode() + "\n", mode=0o600)
        if owner is not None:
            os.chown(file, owner, -1)

    def _certificate(self, hosts: Collection[str], names: Iterable[str], owner: int | None) -> None:
        server = self.path / SERVER
        make_certificate(server / "cert.pem", server / "key.pem", hosts)
        for name in names:
            shutil.copyfile(server / "cert.pem", self.path / name / CA)
        if owner is not None:
            os.chown(server / "key.pem", owner, -1)

    def _config(self, known: Iterable[Identity], server_path: str) -> str:
        users = [
            {"nkey": public_key(self.path / identity.name / SEED), "permissions": identity.permissions()}
            for identity in known
        ]
        lines = [
            "# Made by `resihp keys init`, to be included in nats-server's configuration: public keys, permissions."
        ]
        lines += [f"authorization {{ timeout: 2, users: {json.dumps(users, indent=1)} }}"]
        if (self.path / SERVER / "cert.pem").exists():
            files = {key: f"{server_path}/{name}.pem" for key, name in (("cert_file", "cert"), ("key_file", "key"))}
            lines += [f"tls {json.dumps(files)}"]
        return "\n".join(lines) + "\n"


def public_key(seed: Path) -> str:
    """Of a seed file. Raises `KeysError`."""
    try:
        return str(nkeys.from_seed(bytearray(seed.read_bytes().strip())).public_key, "ascii")
    except (OSError, ValueError, nkeys.NkeysError) as error:
        raise KeysError(f"{seed}: not a seed: {error or type(error).__name__}") from error


def _replace(path: Path, text: str, *, mode: int) -> None:
    """The file is never there with other rights or half of its text."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
        file.write(text)
    draft.chmod(mode)
    draft.replace(path)

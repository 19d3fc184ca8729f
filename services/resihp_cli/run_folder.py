"""Where runs live: `.resihp/runs/<id>/` with logs, database and results; `.resihp/latest` names the newest.

`run.json` is what other commands need to find a running system: addresses and process ids. It is replaced atomically,
so that a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from resihp_cli.errors import CliError

HOME_VARIABLE = "RESIHP_HOME"


def home() -> Path:
    """`$RESIHP_HOME`, else `.resihp` in the working directory."""
    return Path(os.environ.get(HOME_VARIABLE) or ".resihp").absolute()


@dataclass(frozen=True)
class RunInfo:
    """Contents of `run.json`."""

    id: str
    gateway_url: str
    bus_url: str
    database_url: str
    supervisor_pid: int
    job: str | None = None
    pids: Mapping[str, int] = field(default_factory=dict)
    """Process id of each supervised process by its name."""
    health_urls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.path / 'resihp.db'}"

    @property
    def keys(self) -> Path | None:
        """Keys of the run's own bus, if it was started with any."""
        folder = self.path / "keys"
        return folder if folder.is_dir() else None

    def write(self, info: RunInfo) -> None:
        write_json(self.path / "run.json", asdict(info))

    def read(self) -> RunInfo:
        """Raises `CliError` if the folder holds no valid run."""
        data = read_json(self.path / "run.json")
        try:
            return RunInfo(**data)
        except TypeError as error:
            raise CliError(f"{self.path / 'run.json'}: not a run description: {error}") from error


def job_folder(folder: RunFolder, job: str) -> Path:
    """Where a job's results of this run live: job, last plan, final shards, outcome."""
    return folder.path / "jobs" / job


def create(now: datetime) -> RunFolder:
    """A new folder, named by local time; unique even if two runs start in the same second."""
    runs = home() / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    stem = now.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        path = runs / (stem if number == 0 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        folder = RunFolder(path)
        folder.logs.mkdir()
        return folder
    raise CliError(f"cannot create a run folder under {runs}")


def publish_latest(folder: RunFolder) -> None:
    """Point `.resihp/latest` (a text file: also there where links are not) at this run."""
    _replace(home() / "latest", folder.id + "\n")


def find(run: str | None = None) -> RunFolder:
    """The named run, or the newest. Raises `CliError` if there is none."""
    if run is not None:
        path = home() / "runs" / run if os.sep not in run else Path(run)
        if not (path / "run.json").is_file():
            raise CliError(f"no run {run!r} under {home() / 'runs'}")
        return RunFolder(path)
    try:
        name = (home() / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        raise CliError(
            f"no run found in {home()}: start one with `resihp demo` or `resihp up`, or pass --url/--db"
        ) from None
    return find(name)


def write_json(path: Path, data: Any) -> None:
    _replace(path, json.dumps(data, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Raises `CliError` for a missing or broken file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CliError(f"{path}: not JSON: {error}") from error


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)

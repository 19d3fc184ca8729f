"""JOB.toml -> `JobSpec`, plan files, and the checks that need this machine (is the text there, can it be read?)."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from resihp_cli.errors import CliError
from resihp_cli.pretrained import completed
from resihp_messages import JobSpec


def load(path: Path) -> JobSpec:
    """Read and validate a job file. Raises `CliError` with file, key and rule in one line."""
    return parse(_read(path), origin=str(path))


def parse(text: str, *, origin: str) -> JobSpec:
    """TOML text -> job. Paths in it are relative to the working directory; `[model] hf` is looked up there."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CliError(f"{origin}: not TOML: {error}") from error
    model = data.get("model")
    if isinstance(model, dict) and "hf" in model:
        try:
            data = {**data, "model": completed(model)}
        except CliError as error:
            raise CliError(f"{origin}: {error}") from error
    return build(data, origin=origin)


def localised(spec: JobSpec) -> JobSpec:
    """The job with absolute paths: workers have another working directory."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    data = spec.data.model_copy(update={"path": absolute(spec.data.path), "tokenizer": absolute(spec.data.tokenizer)})
    return spec.model_copy(
        update={
            "data": data,
            "model": spec.model.model_copy(update={"hf": absolute(spec.model.hf)}),
            "evaluation": spec.evaluation.model_copy(update={"path": absolute(spec.evaluation.path)}),
            "checkpoints": spec.checkpoints.model_copy(update={"path": absolute(spec.checkpoints.path)}),
        }
    )


def resumed(spec: JobSpec) -> JobSpec:
    """The job, to go on from its newest checkpoint. Raises `CliError` if it has no folder for them."""
    if spec.checkpoints.path is None:
        raise CliError("--resume: the job file has no checkpoints.path")
    return spec.model_copy(update={"checkpoints": spec.checkpoints.model_copy(update={"resume": True})})


def build(data: Mapping[str, Any], *, origin: str) -> JobSpec:
    """Plain data -> job. Raises `CliError` that names the first wrong key and what is wrong with it."""
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise CliError(f"{origin}: {explain(error, JobSpec)}") from error


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """The first violated rule in one line; for an unknown key the closest known one is offered."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(first["loc"][-1]), _keys(model, first["loc"][:-1]), n=1)
        return f"unknown key {where!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
    message = first["msg"].removeprefix("Value error, ")
    if not where or where.split(".", 1)[0] in message:
        return message
    return f"{where}: {message[:1].lower()}{message[1:]}, got {first['input']!r}"


def _keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Known keys of the table at `location`."""
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        nested = field.annotation
        nested = next((a for a in getattr(nested, "__args__", ()) if isinstance(a, type)), nested)
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            model = nested
    return list(model.model_fields)


def check_data(path: str | None) -> None:
    """Make sure that training text can be read here. Raises `CliError`; None (the standard library) always can."""
    if path is None:
        return
    root = Path(path)
    if not root.exists():
        raise CliError(f"data path {path!r} does not exist")
    try:
        files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    except OSError as error:
        raise CliError(f"data path {path!r} cannot be listed: {error.strerror}") from error
    readable = 0
    for file in files:
        try:
            with file.open("rb") as stream:
                readable += bool(stream.read(1))
        except OSError as error:
            if root.is_file():
                raise CliError(f"data path {path!r} cannot be read: {error.strerror}") from error
    if not readable:
        raise CliError(f"data path {path!r} holds no readable, non-empty file")


def load_plan(path: Path) -> dict[str, Any]:
    """A plan file (JSON object, as `resihp plan show --json` prints it). Raises `CliError`."""
    from resihp_plan.plan import InvalidPlan, ParallelPlan

    try:
        data = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise CliError(f"{path}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CliError(f"{path}: a plan is a JSON object, got {type(data).__name__}")
    try:
        return ParallelPlan.from_dict({"epoch": 0, **data}).to_dict()
    except InvalidPlan as error:
        raise CliError(f"{path}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: not UTF-8 text: {error.reason}") from error

"""Which process of which job this is, read from what launchers put into the environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

SOCKET = "RESIHP_ATTACH_SOCKET"
JOB = "RESIHP_ATTACH_JOB"
AXES = "RESIHP_ATTACH_AXES"
HANG_S = "RESIHP_ATTACH_HANG_S"
OWNER = "RESIHP_ATTACH_OWNER"
"""Process that speaks for the rank: helpers that it starts (data loaders, compilers) inherit this and stay silent."""
LAUNCH_FD = "RESIHP_LAUNCH_FD"
"""Descriptor of a rank's line to `resihp launch` (`resihp_attach.ddp`)."""
_DEFAULT_HANG_S = 120.0
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Place:
    """One rank of one start of a job."""

    job: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    start: int
    """How many times the launcher has started the job anew before."""
    axes: dict[str, int] = field(default_factory=dict)
    """Sizes of the parallel axes (`pp`, `dp`, `tp`), the slowest-varying one first; empty: data parallel only."""
    hang_s: float = _DEFAULT_HANG_S
    """All ranks without progress for this long: the job hangs."""


def read_place(environment: Mapping[str, str] | None = None) -> Place:
    """From torchrun's, Slurm's or Open MPI's variables; without any of them a single process.

    Raises ValueError for values that are no numbers.
    """
    env = os.environ if environment is None else environment
    rank = _first(env, 0, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    world = _first(env, 1, "WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
    return Place(
        job=job_name(env),
        rank=rank,
        world_size=world,
        local_rank=_first(env, rank, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=_first(env, world, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        start=_first(env, 0, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"),
        axes=parse_axes(env.get(AXES, "")),
        hang_s=float(env.get(HANG_S) or _DEFAULT_HANG_S),
    )


def has_rank(environment: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher has said which rank this process is."""
    env = os.environ if environment is None else environment
    return any(name in env for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))


def job_name(env: Mapping[str, str]) -> str:
    """The given name, else the launcher's id of the run, else the script's name."""
    run_id = env.get("TORCHELASTIC_RUN_ID", "")
    script = os.path.splitext(os.path.basename(sys.argv[0] or "python"))[0]
    name = env.get(JOB) or (run_id if run_id not in ("", "none") else "") or env.get("SLURM_JOB_ID") or script
    return _NAME.sub("-", name)[:64] or "job"


def parse_axes(text: str) -> dict[str, int]:
    """Raises ValueError with the rule.

    >>> parse_axes("pp=2,dp=2,tp=1")
    {'pp': 2, 'dp': 2, 'tp': 1}
    """
    axes: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, size = part.partition("=")
        if name not in ("pp", "dp", "tp") or name in axes or not size.isdigit() or int(size) < 1:
            raise ValueError(f"axes {text!r}: expected sizes of pp, dp, tp, slowest first, such as pp=2,dp=4")
        axes[name] = int(size)
    return axes


def _first(env: Mapping[str, str], default: int, *names: str) -> int:
    return next((int(env[name]) for name in names if env.get(name)), default)

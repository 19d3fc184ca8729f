"""Settings of an agent: environment `RESIHP_AGENT_*`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from resihp_chassis import ServiceSettings
from resihp_messages.ids import Token

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AgentSettings(ServiceSettings):
    """One agent per node. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_AGENT_", frozen=True, extra="ignore")

    node: Token = "n0"
    """Name of the node, unique in the fleet."""
    num_slots: Annotated[int, Field(ge=1, le=1024)] = 8
    """Devices of the node: how many workers may run here at once."""
    comm_host: str = "127.0.0.1"
    """Address at which workers of other nodes reach this node's workers and its rendezvous store."""
    work_dir: Path = Path(".resihp/agent")
    """Folder of this agent alone: worker logs, fencing ledger."""
    beat_period_s: Positive = 0.25
    watch_period_s: Positive = 0.05
    """How often progress pages are looked at: small against `timeouts.stall_s` of a job."""
    start_timeout_s: Positive = 60.0
    """A worker may be silent for this long while it starts and makes its first iteration, unless it is stopped."""
    exit_code_wait_s: Positive = 0.25
    """How long the report of an exit waits for the exit code."""
    exit_grace_s: Positive = 2.0
    """A worker that closed its link is fenced if its process still exists after this long."""
    link_grace_s: Positive = 0.5
    """An unexplained communication failure is reported as a broken link unless a death explains it within this time."""
    fence_wait_s: Positive = 5.0
    """A process that SIGKILL cannot end within this time hangs in the kernel; the others go on without it."""
    leave_timeout_s: Positive = 10.0
    """A worker that was asked to leave, or has finished, is killed after this long."""
    own_pause_s: Positive = 0.5
    """If the agent itself did not run for this long, silence of its workers counts only from then on."""
    drain_timeout_s: Positive = 10.0
    """On SIGTERM: workers may leave within the first half of this time, messages be delivered within the rest."""
    attach_socket: Path | None = None
    """Unix socket for ranks of jobs that somebody else launches. None: `attach.sock` in the work folder."""
    attach_stall_s: Positive = 1.5
    """A rank of an attached job that is stopped (SIGSTOP, a debugger) is called frozen after this long."""
    attach_silence_s: Positive = 30.0
    """One that is not stopped, but shows no sign of life: it may be in a long call that holds the interpreter."""
    collateral_s: Positive = 1.0
    """Exits of an attached job's ranks within this time are judged together: most follow from the first."""
    restart_wait_s: Positive = 15.0
    """An attached job without `resihp run` is over this long after its last rank: its launcher may start it again."""
    zygote_command: tuple[str, ...] = (sys.executable, "-m", "resihp_trainer.zygote")
    """Program that forks store and workers; `--control-fd N` is appended. Empty: this agent launches no workers, it
    only watches attached jobs."""

    @model_validator(mode="after")
    def _order(self) -> AgentSettings:
        if self.watch_period_s > self.own_pause_s / 2:
            raise ValueError(
                f"watch_period_s ({self.watch_period_s}) must be at most half of own_pause_s ({self.own_pause_s})"
            )
        return self

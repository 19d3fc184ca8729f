"""Settings of the scheduler: environment `RESIHP_SCHEDULER_*`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from resihp_chassis import ServiceSettings

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SchedulerSettings(ServiceSettings):
    """How long things may take before the scheduler acts on it."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_SCHEDULER_", frozen=True, extra="ignore")

    lease_ttl_s: Seconds = 2.0
    """A leader that did not renew for this long is replaced. Take-over after a crash takes this long at most."""
    lease_renew_s: Seconds = 0.5
    """Renewal period; well below the ttl, so that a slow commit does not cost the lease."""
    relay_poll_s: Seconds = 0.25
    """Look into the outbox at least this often. Commits wake the relay at once: this only bounds the unforeseen."""
    report_flush_s: Seconds = 0.25
    """Iteration summaries are written together this often."""
    plan_deadline_s: Seconds = 20.0
    """A change that can wait is dropped if planning takes longer. After a loss the job fails: survivors wait for
    `timeouts.plan_s` only."""
    loss_deadline_s: Seconds = 1.0
    """After a loss the survivors stand still: the full planner gets this long, then the fast one's plan is taken."""
    planner: Literal["process", "thread"] = "process"
    """Where the full planner runs. A process can be stopped when it is late; a thread needs less memory."""
    max_attempts: Annotated[int, Field(ge=1)] = 5
    """Plans in a row for one fault (refused, or interrupted by a broken link) before the job is given up."""
    housekeeping_s: Seconds = 3600.0
    """Old messages are removed this often."""
    keep_messages_s: Seconds = 7 * 86400.0
    """Sent messages and handled message ids are forgotten after this time; longer than acks and commands are stored."""

    @model_validator(mode="after")
    def _renews_in_time(self) -> SchedulerSettings:
        if 2 * self.lease_renew_s > self.lease_ttl_s:
            raise ValueError(
                f"lease_renew_s ({self.lease_renew_s}) must be at most half of lease_ttl_s ({self.lease_ttl_s})"
            )
        return self

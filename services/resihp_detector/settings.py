"""Settings of the detector: environment `RESIHP_DETECTOR_*`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from resihp_chassis import ServiceSettings
from resihp_detect import LivenessConfig

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DetectorSettings(ServiceSettings):
    """How patient the detector is. Times are seconds."""

    model_config = SettingsConfigDict(env_prefix="RESIHP_DETECTOR_", frozen=True, extra="ignore")

    node_s: Positive = 4.0
    """Least silence after which a node counts as lost, unless a job on it states its own `timeouts.node_s`."""
    node_phi: Positive = 8.0
    """Suspicion (phi accrual) that the bound adapts to when beats are irregular."""
    judge_period_s: Positive = 0.1
    """How often silence and open suspicions are looked at."""
    confirm_s: Positive = 0.5
    """After the bound, once the bus has proved to work, a node gets this long for a last beat that was held up."""
    probe_timeout_s: Positive = 1.0
    """The bus must carry a message to the detector itself within this time, or nobody is declared lost."""
    own_pause_s: Positive = 1.0
    """If the detector itself did not run for this long, all nodes get their full time again."""
    link_grace_s: Positive = 0.5
    """A broken link is only reported as such if no death explains it within this time."""

    num_partitions: Annotated[int, Field(ge=1, le=1024)] = 1
    """Detectors that share the work: each judges the groups (job, stage) that fall to it by a hash."""
    partition: Annotated[int, Field(ge=0)] = 0
    """Which of them this process is. Number 0 also watches workers and nodes."""
    snapshot_period_s: Positive = 5.0
    """How often what has been learned is kept on the server: that much of the reports is read again after a restart."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> DetectorSettings:
        if self.partition >= self.num_partitions:
            raise ValueError(f"partition {self.partition} is not below num_partitions {self.num_partitions}")
        return self

    @property
    def liveness(self) -> LivenessConfig:
        return LivenessConfig(floor_s=self.node_s, phi=self.node_phi)

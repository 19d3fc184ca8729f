"""Statistics of detection: pure, no process, no socket. ValueError for values that have no place in a statistic.

`DeviceLevel` names slow devices, `LinkLevel` slow links, `IterationLevel` slow jobs, `BeatIntervals` silent nodes;
`Assembly` puts reports together for the first; `JobLevel` runs them
over the epochs of a job. `docs/detection.md` holds the equations.
"""

from resihp_detect.assembly import Assembly, Frame, Record
from resihp_detect.config import PeerConfig
from resihp_detect.device_level import DeviceLevel
from resihp_detect.device_memory import DeviceMemory
from resihp_detect.fingerprints import Divergence, Fingerprints
from resihp_detect.healthy_time import NUM_FEATURES, HealthyTime, fit_healthy_time
from resihp_detect.iteration_level import IterationConfig, IterationLevel
from resihp_detect.job_level import JobLevel, Row
from resihp_detect.link_level import LinkLevel, least_waiting
from resihp_detect.liveness import BeatIntervals, LivenessConfig, confidence, normal_tail_phi
from resihp_detect.matched_level import MatchedConfig, MatchedLevel
from resihp_detect.probe_level import ProbeLevel
from resihp_detect.redone import Damage, Redone
from resihp_detect.roster import Roster
from resihp_detect.schedule_time import ScheduleTime
from resihp_detect.step_level import StepLevel
from resihp_detect.verdict import Verdict, VerdictKind
from resihp_detect.work import Share, peer_groups, shares

__all__ = [
    "NUM_FEATURES",
    "Assembly",
    "BeatIntervals",
    "Damage",
    "DeviceLevel",
    "DeviceMemory",
    "Divergence",
    "Fingerprints",
    "Frame",
    "HealthyTime",
    "IterationConfig",
    "IterationLevel",
    "JobLevel",
    "LinkLevel",
    "LivenessConfig",
    "MatchedConfig",
    "MatchedLevel",
    "PeerConfig",
    "ProbeLevel",
    "Record",
    "Redone",
    "Roster",
    "Row",
    "ScheduleTime",
    "Share",
    "StepLevel",
    "Verdict",
    "VerdictKind",
    "confidence",
    "fit_healthy_time",
    "least_waiting",
    "normal_tail_phi",
    "peer_groups",
    "shares",
]

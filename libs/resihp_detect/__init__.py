"""Statistics of detection: pure, no process, no socket. ValueError for values that have no place in a statistic."""

from resihp_detect.liveness import BeatIntervals, LivenessConfig, confidence, normal_tail_phi

__all__ = ["BeatIntervals", "LivenessConfig", "confidence", "normal_tail_phi"]

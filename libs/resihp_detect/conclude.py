"""Numbers -> verdicts: severity with its interval, confidence, evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from resihp_detect.calibrate import Calibration
from resihp_detect.peers import MEDIAN_EFFICIENCY
from resihp_detect.verdict import Verdict, VerdictKind

if TYPE_CHECKING:
    from resihp_detect.device_level import DeviceLevel

Places = tuple[npt.NDArray[np.int64], ...]

_MAX_CONFIDENCE = 1.0 - 1e-9


def devices(of: DeviceLevel, iteration: int, slow: Places, recovered: Places) -> list[Verdict]:
    """Verdicts about devices that crossed a bound in this iteration."""
    told = [_device(of, VerdictKind.DEVICE_SLOW, iteration, int(g), int(d)) for g, d in zip(*slow, strict=True)]
    for g, d in zip(*recovered, strict=True):
        first = int(of.cusum.recovering[g, d])
        evidence = {"slow_since": int(of.cusum.onset[g, d]), "residuals_seen": int(of.cusum.since[g, d])}
        told.append(
            Verdict(
                VerdictKind.DEVICE_RECOVERED,
                iteration,
                first,
                of.roster.groups[g],
                of.roster.name(int(g), int(d)),
                confidence=confidence_of(of.config.recovery_h, of.noise(int(g))[0]),
                evidence=evidence,
            )
        )
    return told


def suspicions(of: DeviceLevel, iteration: int, places: Places) -> tuple[Verdict, ...]:
    """Devices that lean towards slow."""
    kind = VerdictKind.DEVICE_SUSPECTED
    return tuple(_device(of, kind, iteration, int(g), int(d)) for g, d in zip(*places, strict=True))


def _device(of: DeviceLevel, kind: VerdictKind, iteration: int, g: int, d: int) -> Verdict:
    p, low, high, confidence, evidence = _severity(of, g, d)
    return Verdict(
        kind,
        iteration,
        int(of.cusum.onset[g, d]),
        of.roster.groups[g],
        of.roster.name(g, d),
        p,
        low,
        high,
        confidence,
        evidence,
    )


def _severity(of: DeviceLevel, g: int, d: int) -> tuple[float, float, float, float, dict[str, Any]]:
    """p = exp(-median residual); the interval counts the noise of the residuals and of the device's own offset."""
    level, count = of.cusum.severity(g, d)
    sigma, memory, factor = of.noise(g)
    error = certainty(sigma, memory, count, of.config.warmup)
    level = max(level, 0.0)
    c = of.config
    evidence = {
        "slowdown": round(math.exp(level), 4),
        "iterations_seen": count,
        "cusum": round(float(of.cusum.rise[g, d]), 4),
        "threshold": round(c.h * factor, 4),
        "sigma": round(sigma, 4),
        "peers": int(of.roster.sizes[g]) - 1,
    }
    p, low, high = math.exp(-level), math.exp(-level - 1.96 * error), min(1.0, math.exp(-level + 1.96 * error))
    return p, low, high, confidence_of(level, error), evidence


def certainty(sigma: float, memory: float, count: int, warmup: int) -> float:
    """Deviation of a median residual over `count` iterations, with that of an offset learned over `warmup` ones."""
    return MEDIAN_EFFICIENCY * sigma * memory**2 * math.sqrt(1.0 / max(count, 1) + 1.0 / warmup)


def confidence_of(effect: float, error: float) -> float:
    """1 - P(normal noise of this deviation exceeds the effect)."""
    if error <= 0.0:
        return _MAX_CONFIDENCE
    return min(1.0 - 0.5 * math.erfc(effect / error / math.sqrt(2.0)), _MAX_CONFIDENCE)


def shift(of: DeviceLevel, g: int, iteration: int, first: int, moved: float) -> Verdict:
    """The whole group changed."""
    evidence = {"level_change": round(math.exp(moved) - 1.0, 4), "devices": int(of.roster.sizes[g])}
    return Verdict(VerdictKind.WORKLOAD_SHIFT, iteration, first, of.roster.groups[g], evidence=evidence)


def born(
    of: DeviceLevel, g: int, iteration: int, first: int, slow: Iterable[np.int64], again: bool
) -> Iterable[Verdict]:
    """Devices that were slow in all of the warm-up (`again`: in a later one)."""
    for d in slow:
        verdict = _device(of, VerdictKind.DEVICE_SLOW, iteration, g, int(d))
        evidence = {**verdict.evidence, "born_slow": not again, "iterations_seen": of.config.warmup}
        yield replace(verdict, first_iteration=first, evidence=evidence)


def heterogeneity(of: DeviceLevel, g: int, iteration: int, first: int, found: Calibration) -> Verdict:
    """Permanent differences between devices, as throughput relative to the group's median."""
    group = of.roster.groups[g]
    relative = {
        of.roster.name(g, d): round(math.exp(-float(x)), 3)
        for d, x in enumerate(found.offset)
        if abs(x) > of.config.tolerance and not found.born_slow[d]
    }
    return Verdict(VerdictKind.HETEROGENEITY, iteration, first, group, evidence={"relative_speed": relative})


def slow_devices(of: DeviceLevel) -> dict[str, tuple[float, float, float, float]]:
    """p, its 95 % interval and the confidence that it is slow, of every device that counts as slow."""
    found = {}
    for g, d in zip(*np.nonzero(of.cusum.slow), strict=True):
        p, low, high, confidence, _ = _severity(of, int(g), int(d))
        found[of.roster.name(int(g), int(d))] = (p, low, high, confidence)
    return found


def scores(of: DeviceLevel) -> dict[str, tuple[float, float]]:
    """p and confidence of every device; a device that is not slow has p = 1."""
    slow = slow_devices(of)
    return {name: (slow[name][0], slow[name][3]) if name in slow else (1.0, 0.0) for name in of.roster.places}

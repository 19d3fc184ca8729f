"""One sentence per verdict of a replay."""

from __future__ import annotations

from resihp_detect import Verdict, VerdictKind


def verdict_line(v: Verdict) -> str:
    """`iteration 1831: w6 is slow since 1811 ...`"""
    return f"iteration {v.iteration}: {_what(v)}"


def _what(v: Verdict) -> str:
    match v.kind:
        case VerdictKind.DEVICE_SLOW:
            sure = min(99.99, 100 * v.confidence)
            return (
                f"{v.device} is slow since {v.first_iteration}: at {v.p:.2f} of its speed "
                f"[{v.p_low:.2f}, {v.p_high:.2f}], confidence {sure:.2f} %"
            )
        case VerdictKind.DEVICE_RECOVERED:
            return f"{v.device} is as fast as its peers again since {v.first_iteration}"
        case VerdictKind.HETEROGENEITY:
            return f"devices of {v.group} differ for good (no fault)"
        case VerdictKind.WORKLOAD_SHIFT:
            return f"all of {v.group} changed together since {v.first_iteration} (no fault); learning anew"
        case _:
            return f"{v.kind} in {v.group}"

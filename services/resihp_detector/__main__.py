"""`python -m resihp_detector`: observations and beats in, verdicts out. Settings: `RESIHP_DETECTOR_*`."""

from __future__ import annotations

import sys

from resihp_chassis import run_service
from resihp_detector.bootstrap import run
from resihp_detector.settings import DetectorSettings


def main() -> int:
    return run_service("detector", DetectorSettings, run)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m resihp_scheduler`: plans and commands. Settings: `RESIHP_SCHEDULER_*`, `RESIHP_*`, `RESIHP_BUS_*`."""

from __future__ import annotations

import sys

from resihp_chassis import run_service
from resihp_scheduler.bootstrap import serve
from resihp_scheduler.settings import SchedulerSettings
from resihp_store import StoreError


def main() -> int:
    return run_service("scheduler", SchedulerSettings, serve, startup_errors=(StoreError,))


if __name__ == "__main__":
    sys.exit(main())

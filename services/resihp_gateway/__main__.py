"""`python -m resihp_gateway`: settings from RESIHP_GATEWAY_*, RESIHP_BUS_*, RESIHP_DATABASE_URL."""

from __future__ import annotations

import sys

from resihp_chassis import run_service
from resihp_gateway.bootstrap import run_gateway
from resihp_gateway.settings import GatewaySettings
from resihp_store import StoreError


def main() -> int:
    """Exit codes: 0 stopped in order, 1 a bug, 2 could not start (one line on stderr says why)."""
    return run_service("gateway", GatewaySettings, run_gateway, startup_errors=(StoreError,))


if __name__ == "__main__":
    sys.exit(main())

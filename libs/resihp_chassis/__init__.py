"""What every service process shares: settings, lifecycle, health endpoint, logs, metrics, clock.

Errors: `StartupError` <- `SettingsError`, `PortInUse`.
"""

from resihp_chassis.clock import Clock, ManualClock, SystemClock
from resihp_chassis.errors import PortInUse, SettingsError, StartupError
from resihp_chassis.health import Check, Health, HealthServer, Report
from resihp_chassis.logs import configure_logs
from resihp_chassis.metrics import LATENCY_BUCKETS_S, Metrics
from resihp_chassis.service import Main, Service, run_service
from resihp_chassis.settings import ServiceSettings, load_settings

__all__ = [
    "LATENCY_BUCKETS_S",
    "Check",
    "Clock",
    "Health",
    "HealthServer",
    "Main",
    "ManualClock",
    "Metrics",
    "PortInUse",
    "Report",
    "Service",
    "ServiceSettings",
    "SettingsError",
    "StartupError",
    "SystemClock",
    "configure_logs",
    "load_settings",
    "run_service",
]

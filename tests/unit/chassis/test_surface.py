"""The exported names of bus and chassis are a promise to the services."""

from __future__ import annotations

import resihp_bus
import resihp_chassis

BUS = (
    "Ack Bus BusError BusRefused BusStats BusUnavailable Handler JetStreamBus JetStreamSettings KeyFolder KeysError "
    "Listener LocalNats MemoryBroker MemoryBus Outcome Reject Responder Retry ServerError Stored Subscription "
    "find_binary"
)
CHASSIS = (
    "LATENCY_BUCKETS_S Check Clock Health HealthServer Main ManualClock Metrics PortInUse Report Service "
    "ServiceSettings SettingsError StartupError SystemClock configure_logs load_settings run_service"
)


def test_bus() -> None:
    assert sorted(resihp_bus.__all__) == sorted(BUS.split())


def test_chassis() -> None:
    assert sorted(resihp_chassis.__all__) == sorted(CHASSIS.split())

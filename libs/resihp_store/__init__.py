"""The database: the only importer of SQLAlchemy and Alembic.

`Store` is the way in; `queries`, `history` and `decisions` read frozen records (gateway, CLI, scheduler); `UnitOfWork`
is the leader's fenced transaction. Errors: `StoreError` and its children (`errors`).
"""

from resihp_store import decisions, history, queries
from resihp_store.decisions import ControlRecord, DecisionMode, DecisionOutcome, DecisionRecord
from resihp_store.errors import (
    BadDatabaseUrl,
    LeadershipLost,
    SchemaAhead,
    SchemaBehind,
    SchemaMismatch,
    StoreError,
    StoreUnavailable,
)
from resihp_store.lease import Lease
from resihp_store.records import (
    AckRecord,
    DeviceRecord,
    DeviceState,
    EventRecord,
    IncidentRecord,
    IterationRecord,
    JobRecord,
    JobState,
    Json,
    LeaseRecord,
    NodeRecord,
    NodeState,
    OutgoingMessage,
    PlanRecord,
    ReconfigurationRecord,
    ReconfigurationStatus,
)
from resihp_store.store import Store
from resihp_store.unit_of_work import UnitOfWork

__all__ = [
    "AckRecord",
    "BadDatabaseUrl",
    "ControlRecord",
    "DecisionMode",
    "DecisionOutcome",
    "DecisionRecord",
    "DeviceRecord",
    "DeviceState",
    "EventRecord",
    "IncidentRecord",
    "IterationRecord",
    "JobRecord",
    "JobState",
    "Json",
    "LeadershipLost",
    "Lease",
    "LeaseRecord",
    "NodeRecord",
    "NodeState",
    "OutgoingMessage",
    "PlanRecord",
    "ReconfigurationRecord",
    "ReconfigurationStatus",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaMismatch",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "UnitOfWork",
    "decisions",
    "history",
    "queries",
]

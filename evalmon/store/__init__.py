"""The results store: runs, checkpoints, scores, failures, verdicts, alerts, deliveries.

SQLAlchemy lives only here. Layout: :mod:`~evalmon.store.schema` the tables,
:mod:`~evalmon.store.codec` values to rows and back, :mod:`~evalmon.store.database`
connections and errors, :mod:`~evalmon.store.reading` every query,
:mod:`~evalmon.store.presence` leases and heartbeats, :mod:`~evalmon.store.holder` the
processes that hold them, :mod:`~evalmon.store.writing` every other effect,
:mod:`~evalmon.store.records` the values handed out. Beside the store lies a cache that may
be lost: :mod:`~evalmon.store.responses`, a model's answers while its checkpoint is scored.
"""

from evalmon.store.holder import Holder
from evalmon.store.records import Delivery, Heartbeat, ProbePoint, ScorePoint, StoredFailure
from evalmon.store.responses import ResponseFile
from evalmon.store.writing import Store

__all__ = [
    "Delivery",
    "Heartbeat",
    "Holder",
    "ProbePoint",
    "ResponseFile",
    "ScorePoint",
    "Store",
    "StoredFailure",
]

"""The results store: runs, checkpoints, scores, failures, verdicts, alerts, deliveries.

SQLAlchemy lives only here. Layout: :mod:`~evalmon.store.schema` the tables,
:mod:`~evalmon.store.codec` values to rows and back, :mod:`~evalmon.store.database`
connections and errors, :mod:`~evalmon.store.reading` every query,
:mod:`~evalmon.store.writing` every effect, :mod:`~evalmon.store.holder` who is at work.
"""

from evalmon.store.holder import Holder
from evalmon.store.records import Delivery, Heartbeat, ProbePoint, ScorePoint, StoredFailure
from evalmon.store.writing import Store

__all__ = [
    "Delivery",
    "Heartbeat",
    "Holder",
    "ProbePoint",
    "ScorePoint",
    "Store",
    "StoredFailure",
]

"""The tables. Only types every database knows; JSON and arrays are stored as text and bytes."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

__all__ = [
    "SCHEMA_VERSION",
    "alerts",
    "checkpoints",
    "deliveries",
    "evaluations",
    "failures",
    "heartbeats",
    "leases",
    "meta",
    "metadata",
    "runs",
    "scores",
    "verdicts",
]

SCHEMA_VERSION = 2
"""Version of these tables; a store of any other is refused."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("path", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("comparison", Text, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("run", String(255), ForeignKey("runs.name"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("tokens", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("weights", String(64), nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", String(255), ForeignKey("runs.name"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("evaluator", String(255), nullable=False),
    Column("version", String(64), nullable=False),
    Column("weights", String(64), nullable=False),
    Column("seconds", Float, nullable=False),
    Column("finished_at", Float, nullable=False),
    Column("probe", Text),
    Column("artifacts", Text, nullable=False),
    Column("header", Text, nullable=False),
    UniqueConstraint("run", "step", "evaluator", "version"),
)

scores = Table(
    "scores",
    metadata,
    Column("evaluation", Integer, ForeignKey("evaluations.id"), primary_key=True),
    Column("metric", String(255), primary_key=True, index=True),
    Column("value", Float, nullable=False),
    Column("stderr", Float),
    Column("items", Integer, nullable=False),
    Column("identity", Text, nullable=False),
    Column("identity_fingerprint", String(64), nullable=False),
    Column("item_ids", LargeBinary, nullable=False),
    Column("item_values", LargeBinary, nullable=False),
    Column("item_weights", LargeBinary, nullable=False),
)

failures = Table(
    "failures",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", String(255), ForeignKey("runs.name"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("path", Text, nullable=False),
    Column("evaluator", String(255), nullable=False),
    Column("version", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("superseded", Boolean, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("run", "step", "evaluator", "version", "attempt"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run", String(255), ForeignKey("runs.name"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("judge", String(64), nullable=False),
    Column("verdict", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Column("at", Float, nullable=False),
    UniqueConstraint("run", "step", "judge"),
)

alerts = Table(
    "alerts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("run", String(255), ForeignKey("runs.name"), nullable=False),
    Column("cause", String(64), nullable=False),
    Column("status", String(32), nullable=False),
    Column("opened_step", Integer, nullable=False),
    Column("opened_tokens", BigInteger, nullable=False),
    Column("quiet", Integer, nullable=False),
    Column("title", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("verdict", String(64), nullable=False),
    Column("updated_step", Integer, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("alert_id", String(64), ForeignKey("alerts.id"), nullable=False),
    Column("sink", String(255), nullable=False),
    Column("status", String(32), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("due_at", Float, nullable=False),
    UniqueConstraint("alert_id", "sink"),
)

leases = Table(
    "leases",
    metadata,
    Column("resource", String(255), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started", String(64), nullable=False),
    Column("until", Float, nullable=False),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("run", String(255), ForeignKey("runs.name"), primary_key=True),
    Column("host", String(255), primary_key=True),
    Column("pid", Integer, primary_key=True),
    Column("started", String(64), nullable=False),
    Column("stage", Text, nullable=False),
    Column("since", Float, nullable=False),
)

"""Every value that crosses a module of evalmon, and the run directory's file forms.

A **run directory** is the only thing trainer and monitor share::

    RUN/
      run.json          RunDescription, written before step 1
      log.jsonl         one JSON object a line: events start, step, checkpoint, end
      ids.bin           the id log: ID_LOG_MAGIC, then records of ID_LOG_RECORD
      checkpoints/N/    Orbax checkpoint after N optimizer updates (0 = untrained)
      STOP              created by anyone: the trainer checkpoints and ends cleanly

Weights outside a run, as ``python -m trainer convert`` writes them, are a folder too::

    WEIGHTS/
      model.json        ModelDescription
      params/           Orbax item with the parameters
      provenance.json   where they are from

Units are suffixes of the names: ``_nats`` (per token), ``_bpb`` (bits per UTF-8
byte), ``_acc`` (fraction), ``_tokens`` (trained on, padding excluded).
"""

from evalmon.types.curves import Curve, RunCurves, Sampling
from evalmon.types.documents import Document
from evalmon.types.forest import ROW_TOKENS, ForestScores, TokenForest
from evalmon.types.overlaps import (
    DocumentOverlap,
    LeakageReport,
    OverlapMeasure,
    TrainingDocument,
)
from evalmon.types.repeats import RepeatSummary, Seam
from evalmon.types.rope import (
    FULL,
    SLIDING,
    RopeParameters,
    Yarn,
    inverse_frequencies,
    layer_types,
    rope_parameters,
)
from evalmon.types.run import (
    ID_LOG_MAGIC,
    ID_LOG_RECORD,
    RUN_FORMAT,
    CheckpointRef,
    ModelDescription,
    RunDescription,
)
from evalmon.types.scores import (
    Evaluation,
    Failure,
    MetricIdentity,
    ProbeResult,
    ResponseCache,
    Score,
    ScoreRequest,
    TokenScores,
)
from evalmon.types.series import FloatArray, IntArray, Series, ToleranceBand
from evalmon.types.text_hash import text_hashes
from evalmon.types.verdicts import (
    Alert,
    AlertStatus,
    Finding,
    Json,
    TaskDifference,
    Verdict,
    VerdictName,
)
from evalmon.types.weights import weights_fingerprint

__all__ = [
    "FULL",
    "ID_LOG_MAGIC",
    "ID_LOG_RECORD",
    "ROW_TOKENS",
    "RUN_FORMAT",
    "SLIDING",
    "Alert",
    "AlertStatus",
    "CheckpointRef",
    "Curve",
    "Document",
    "DocumentOverlap",
    "Evaluation",
    "Failure",
    "Finding",
    "FloatArray",
    "ForestScores",
    "IntArray",
    "Json",
    "LeakageReport",
    "MetricIdentity",
    "ModelDescription",
    "OverlapMeasure",
    "ProbeResult",
    "RepeatSummary",
    "ResponseCache",
    "RopeParameters",
    "RunCurves",
    "RunDescription",
    "Sampling",
    "Score",
    "ScoreRequest",
    "Seam",
    "Series",
    "TaskDifference",
    "TokenForest",
    "TokenScores",
    "ToleranceBand",
    "TrainingDocument",
    "Verdict",
    "VerdictName",
    "Yarn",
    "inverse_frequencies",
    "layer_types",
    "rope_parameters",
    "text_hashes",
    "weights_fingerprint",
]

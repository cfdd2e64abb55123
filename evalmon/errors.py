"""The exceptions evalmon and its trainer raise on purpose.

::

    EvalmonError
    ├── ConfigError       a setting, option, task or name that is not valid       -> exit 2
    ├── DataError         text, token files, logs or id logs that cannot be used  -> exit 2
    │   └── FetchError    data that had to be fetched and could not be            -> exit 4
    ├── CheckpointError   a run or checkpoint missing, torn or misshaped -> exit 2
    ├── EvaluationError   one evaluator could not score one checkpoint            -> stored
    ├── DeliveryError     a sink could not hand an alert over                     -> stored, retried
    ├── TrainingError     the trainer had to stop: a loss is not finite           -> exit 1
    ├── WriteError        a file cannot be written: no space, no permission       -> exit 4
    └── StoreError        the results store cannot be opened, read or written     -> exit 4

Every message names the file or setting, the value found, what was expected and
what to do next. A foreign exception is wrapped once, in the file that owns the
foreign library.
"""

from typing import ClassVar

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeliveryError",
    "EvalmonError",
    "EvaluationError",
    "FetchError",
    "StoreError",
    "TrainingError",
    "WriteError",
    "exit_code_of",
]


class EvalmonError(Exception):
    """Base of every error raised on purpose.

    Example:
        >>> DataError("tokens.npy: 10 bytes, not a multiple of 4").exit_code
        2
    """

    exit_code: ClassVar[int] = 4


class ConfigError(EvalmonError):
    """A setting, option, task or name is not valid."""

    exit_code = 2


class DataError(EvalmonError):
    """Text, token files, logs or id logs cannot be used as they are."""

    exit_code = 2


class FetchError(DataError):
    """Data that had to be fetched could not be had."""

    exit_code = 4


class CheckpointError(EvalmonError):
    """A run directory or checkpoint is missing, unfinished, torn or misshaped."""

    exit_code = 2


class EvaluationError(EvalmonError):
    """One evaluator could not score one checkpoint."""

    exit_code = 4


class DeliveryError(EvalmonError):
    """A sink could not hand an alert over.

    Args:
        message: what the receiver said.
        retryable: False when another try would meet the same refusal.
        wait_seconds: how long the receiver asked to be left alone.
    """

    exit_code = 4

    def __init__(self, message: str, *, retryable: bool = True, wait_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.wait_seconds = wait_seconds


class TrainingError(EvalmonError):
    """The trainer had to stop: the loss or a gradient is not finite."""

    exit_code = 1


class StoreError(EvalmonError):
    """The results store cannot be opened, read or written."""

    exit_code = 4


class WriteError(EvalmonError):
    """A file cannot be written: no space left, or no permission."""

    exit_code = 4


def exit_code_of(name: str) -> int:
    """Return the exit code of an error that was stored by the name of its class.

    Example:
        >>> exit_code_of("DataError"), exit_code_of("ZeroDivisionError")
        (2, 4)
    """
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, EvalmonError):
        return kind.exit_code
    return EvalmonError.exit_code

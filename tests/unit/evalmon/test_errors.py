"""The tree of errors: every one is an EvalmonError with a documented exit code."""

import inspect

import pytest

from evalmon import errors


def members() -> list[type[errors.EvalmonError]]:
    """Return the exception classes of the module."""
    found = [item for _, item in inspect.getmembers(errors, inspect.isclass)]
    return [item for item in found if issubclass(item, errors.EvalmonError)]


def test_every_error_is_exported_and_drawn_in_the_tree() -> None:
    names = {item.__name__ for item in members()}
    assert names | {"exit_code_of"} == set(errors.__all__)
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in names)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError, 2),
        (errors.DataError, 2),
        (errors.FetchError, 4),
        (errors.CheckpointError, 2),
        (errors.EvaluationError, 4),
        (errors.DeliveryError, 4),
        (errors.TrainingError, 1),
        (errors.StoreError, 4),
        (errors.EvalmonError, 4),
    ],
)
def test_an_error_ends_a_command_with_its_exit_code(
    error: type[errors.EvalmonError], code: int
) -> None:
    assert error.exit_code == code


def test_a_fetch_that_failed_is_a_data_error() -> None:
    assert issubclass(errors.FetchError, errors.DataError)


def test_a_delivery_is_tried_again_unless_it_was_refused() -> None:
    down = errors.DeliveryError("down", wait_seconds=3.0)
    assert (str(down), down.retryable, down.wait_seconds) == ("down", True, 3.0)
    assert not errors.DeliveryError("no such hook", retryable=False).retryable

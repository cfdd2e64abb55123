"""Alerts for the sinks' tests."""

from collections.abc import Callable

import pytest

from evalmon.types import Alert, AlertStatus, VerdictName


@pytest.fixture
def alert() -> Callable[..., Alert]:
    """Make an alert."""

    def make(number: int = 1, message: str = "") -> Alert:
        facts = f"run tiny-{number} | step 70 | unmatched drop +0.3124 nats"
        return Alert(
            id=f"{number:016x}",
            run=f"tiny-{number}",
            cause="memorization",
            status=AlertStatus.OPEN,
            opened_step=70,
            opened_tokens=2240,
            quiet=0,
            title=f"tiny-{number}: train loss falls and holdout loss does not follow (step 70)",
            message=f"{facts}\n{message}",
            verdict=VerdictName.MEMORIZATION_SUSPECTED,
            updated_step=70,
        )

    return make

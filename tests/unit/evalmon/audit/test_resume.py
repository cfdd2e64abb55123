"""--stop-at and --resume: read, and refused."""

import pytest

from evalmon.audit.resume import ResumePlan, parse_resume
from evalmon.errors import ConfigError


def test_hosts_and_mode_come_in_any_order():
    assert parse_resume("4,8", "state,2") == ResumePlan((4, 8), (2,), "state")
    assert parse_resume("4", None) == ResumePlan((4,))
    assert parse_resume(None, None) == ResumePlan()


def test_hosts_are_one_number_or_one_a_stop():
    assert [parse_resume("4,8", "2").hosts_after(stop, 4) for stop in (0, 1)] == [2, 2]
    assert [parse_resume("4,8", "2,3").hosts_after(stop, 4) for stop in (0, 1)] == [2, 3]
    assert parse_resume("4", "skip").hosts_after(0, 5) == 5


@pytest.mark.parametrize(
    ("stop", "resume", "message"),
    [
        ("0", None, "rising steps from 1"),
        ("8,4", None, "rising steps from 1"),
        ("a", None, "rising steps from 1"),
        (None, "state", "nothing stops; give --stop-at"),
        ("4", "sideways", "'sideways' is neither a number of hosts nor one mode of argument"),
        ("4", "0", "'0' is neither"),
        ("4", "state,skip", "'skip' is neither a number of hosts nor one mode"),
        ("4,8,12", "1,2", "2 numbers of hosts for 3 stops"),
    ],
)
def test_what_cannot_be_meant_is_refused(stop: str | None, resume: str | None, message: str):
    with pytest.raises(ConfigError, match=message):
        parse_resume(stop, resume)

"""The captures that other tests read are those that would be made now."""

import pytest

from phaze_opt.workload.cache import CAPTURE_VERSION
from phaze_opt.workload.zoo import capture_key
from tests.captures import stored_captures

HINT = "python -m tests.captures"
STORED = stored_captures()


def test_captures_of_the_tests_are_of_this_version() -> None:
    """Others would not be read, and each test would capture anew."""
    assert {one.key.capture_version for one in STORED} == {CAPTURE_VERSION}, HINT


@pytest.mark.parametrize("place", range(7, len(STORED), 40))
def test_a_stored_capture_is_a_fresh_one(place: int) -> None:
    """Some of them, each compared whole."""
    assert STORED[place] == capture_key(STORED[place].key), HINT

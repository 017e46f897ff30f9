"""A changed capture must not be mistaken for a cached one."""

import json

from phaze_opt.workload.cache import CAPTURE_VERSION
from tests.workload.golden import PATH, digests


def test_captures_change_only_with_their_version() -> None:
    """Cached captures of this version hold the same numbers as a capture made now."""
    golden = json.loads(PATH.read_text("utf-8"))
    hint = "raise CAPTURE_VERSION and run python -m tests.workload.golden"
    assert golden["capture_version"] == CAPTURE_VERSION, hint
    assert golden["digests"] == digests(), hint

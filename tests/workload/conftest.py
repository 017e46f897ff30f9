"""What these tests capture, they capture now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="package", autouse=True)
def captured_now(workload_cache: Path) -> Iterator[None]:
    """Begin with an empty cache, which the worker processes of this run share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHAZE_CACHE", str(workload_cache.with_name("captured-now")))
        yield

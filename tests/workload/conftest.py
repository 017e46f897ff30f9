"""What these tests capture, they capture now."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def captured_now(
    tmp_path_factory: pytest.TempPathFactory, workload_cache: object
) -> Iterator[None]:
    """Begin with an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHAZE_CACHE", str(tmp_path_factory.mktemp("captured-now")))
        yield

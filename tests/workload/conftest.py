"""What these tests capture, they capture now, or did while captures were the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workload.kept import hash_of_captures

_FOLDER = "captured-now"


@pytest.fixture(scope="package", autouse=True)
def captured_now(workload_cache: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Begin with what the present code has captured, which the worker processes of a run share.

    Without pytest's cache (``-p no:cacheprovider``) that is nothing.
    """
    folder = workload_cache.with_name(_FOLDER)
    if request.config.pluginmanager.has_plugin("cacheprovider"):
        own, kept = hash_of_captures(), request.config.cache.mkdir(_FOLDER)
        for other in kept.iterdir():
            if other.name != own:
                shutil.rmtree(other, ignore_errors=True)
        folder = kept / own
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHAZE_CACHE", str(folder))
        yield

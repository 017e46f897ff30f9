"""Fixtures that every test sees."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from phaze_opt.compiled import load_all


@pytest.fixture(scope="session", autouse=True)
def workload_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Capture workloads into a folder of this run, shared by its worker processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "workload-cache"
    before = os.environ.get("PHAZE_CACHE")
    os.environ["PHAZE_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PHAZE_CACHE"]
    else:
        os.environ["PHAZE_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def loaded() -> None:
    """Load the compiled loops before the first test, so that no test is slow for that."""
    load_all()

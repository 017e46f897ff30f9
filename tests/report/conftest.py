"""A study that has run."""

from __future__ import annotations

import pytest

from phaze_opt.study.study import Study
from tests.report.studies import run_study


@pytest.fixture(scope="package")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Run a toy study; nothing may change it."""
    return run_study(tmp_path_factory.mktemp("view"))

"""The study whose plots are tested."""

from __future__ import annotations

import pytest

from phaze_opt.report.study_view import StudyView, view_of
from tests.report.studies import run_study


@pytest.fixture(scope="package")
def view(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    """Run a toy study, and view it."""
    return view_of(run_study(tmp_path_factory.mktemp("plots"), trials=60))

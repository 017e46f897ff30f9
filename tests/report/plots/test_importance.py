"""How much of the variance each parameter explains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.plots.importance import _explained, importances
from phaze_opt.report.study_view import StudyView


def test_importance_finds_what_decides(view: StudyView) -> None:
    """Shares lie between 0 and 1; size of the HBM, which the toy model ignores, decides nothing."""
    found = importances(view)
    assert all(0.0 <= share <= 1.0 for share in found.values())
    assert found["hbm_gib"] < max(found.values())


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_explained_variance_of_known_cases(seed: int, groups: int) -> None:
    """A value that the group fixes is explained in whole; chance explains little."""
    draw = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(groups), draw.integers(0, groups, 40)])
    logs = codes.astype(float)
    whole = float(((logs - logs.mean()) ** 2).sum())
    assert _explained(logs, codes, whole) == pytest.approx(1.0)
    assert _explained(logs, np.zeros_like(codes), whole) == 0.0
    noise = draw.normal(size=len(codes))
    assert _explained(noise, codes, float(((noise - noise.mean()) ** 2).sum())) < 0.5

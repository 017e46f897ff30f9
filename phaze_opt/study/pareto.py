"""Pareto front: designs to which no other is equal or better in all objectives, better in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.trials import TrialRecord


def front(spec: StudySpec, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the feasible trials that no other trial dominates, in the order of designs.

    Values are compared exactly. Of trials with equal values only the first in the order of designs
    is returned.
    """
    ranked: list[tuple[Rank, TrialRecord]] = [
        (trial.rank, trial) for trial in trials if trial.rank is not None
    ]
    ranked.sort(key=lambda pair: pair[0].key)
    signs = [-1.0 if kind.maximise else 1.0 for kind in spec.objective_kinds]
    costs = np.array([_values(trial) for _, trial in ranked]).reshape(-1, len(signs)) * signs
    kept: list[int] = []
    for index in range(len(costs)):
        no_worse = (costs <= costs[index]).all(axis=1)
        better = (costs < costs[index]).any(axis=1)
        equal_before = (costs[:index] == costs[index]).all(axis=1).any()
        if not (no_worse & better).any() and not equal_before:
            kept.append(index)
    return [ranked[index][1] for index in kept]


def _values(trial: TrialRecord) -> tuple[float, ...]:
    """Return the values of a feasible trial."""
    assert trial.metrics is not None
    return trial.metrics.values

"""Pareto front: designs to which no other is equal or better in all objectives, better in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.trials import TrialRecord

_AT_ONCE = 256


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
    order = np.lexsort(costs.T[::-1])
    first: dict[tuple[float, ...], TrialRecord] = {}
    for place in sorted(order[undominated(costs[order])]):
        first.setdefault(tuple(costs[place]), ranked[place][1])
    return list(first.values())


def undominated(costs: FloatArray) -> IntArray:
    """Return the places of the rows that no other row dominates; of equal rows all.

    Parameters
    ----------
    costs
        The smaller the better, of shape (designs, objectives), sorted by the first objective, then
        the second, and so on: no row dominates one that comes before it.
    """
    kept = np.empty((0, costs.shape[1]))
    places = np.empty(0, dtype=np.int64)
    for start in range(0, len(costs), _AT_ONCE):
        block = costs[start : start + _AT_ONCE]
        free = ~_are_dominated(block, kept)
        free[free] = ~_are_dominated(block[free], block[free])
        kept = np.concatenate((kept, block[free]))
        places = np.concatenate((places, start + np.flatnonzero(free)))
    return places


def _are_dominated(costs: FloatArray, by: FloatArray) -> BoolArray:
    """Whether each row is dominated by one of other rows."""
    no_worse = np.all(by[None] <= costs[:, None], axis=2)
    better = np.any(by[None] < costs[:, None], axis=2)
    dominated: BoolArray = np.any(no_worse & better, axis=1)
    return dominated


def _values(trial: TrialRecord) -> tuple[float, ...]:
    """Return the values of a feasible trial."""
    assert trial.metrics is not None
    return trial.metrics.values

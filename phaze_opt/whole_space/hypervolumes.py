"""Hypervolumes of the fronts of several studies, on one scale."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.optuna_private import compute_hypervolume
from phaze_opt.study.pareto import front
from phaze_opt.study.trials import TrialRecord

_REFERENCE = 1.1
"""Reference point of hypervolumes, in ranges of the joined front from its best corner."""


def hypervolumes(spec: StudySpec, trials: Sequence[Sequence[TrialRecord]]) -> list[float | None]:
    """Return the hypervolume of every study's front, relative to that of their joined front.

    Each objective is scaled to the range between its best and its worst value on the joined front;
    the reference point lies a tenth beyond the worst values, so that the ends of a front count too.

    Parameters
    ----------
    spec
        The common spec of the studies.
    trials
        Trials of every study.

    Returns
    -------
    hypervolumes
        ``None`` for every study if no trial is feasible.
    """
    signs = [-1.0 if kind.maximise else 1.0 for kind in spec.objective_kinds]
    joined = _costs(front(spec, list(itertools.chain(*trials))), signs)
    if not len(joined):
        return [None] * len(trials)
    best, worst = joined.min(axis=0), joined.max(axis=0)
    extent = np.where(worst > best, worst - best, 1.0)
    reference = np.full(len(signs), _REFERENCE)

    def volume(costs: FloatArray) -> float:
        scaled = (costs - best) / extent
        inside = scaled[(scaled < reference).all(axis=1)]
        return float(compute_hypervolume(inside, reference)) if len(inside) else 0.0

    whole = volume(joined)
    return [volume(_costs(front(spec, own_trials), signs)) / whole for own_trials in trials]


def _costs(trials: Sequence[TrialRecord], signs: Sequence[float]) -> FloatArray:
    """Return the values of feasible trials times their signs: (trials, objectives)."""
    values = [trial.metrics.values for trial in trials if trial.metrics is not None]
    return np.array(values).reshape(-1, len(signs)) * signs

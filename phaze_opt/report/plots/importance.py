"""How much of the variance of the value each searched parameter explains by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from phaze_opt.report.figure_style import BLUE, Figure, axis, empty_figure, figure
from phaze_opt.report.plots.marks import feasible_trials, first_value
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.words import axis_words

_FEWEST_DESIGNS = 10


def importance(view: StudyView) -> Figure:
    """Draw how much of the variance of the value each parameter explains by itself."""
    shares = sorted(importances(view).items(), key=lambda pair: pair[1])
    if not shares:
        return empty_figure("Importance needs at least ten feasible designs that differ.")
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": [axis_words(name) for name, _ in shares],
        "x": [100.0 * share for _, share in shares],
        "text": [f"{share:.0%}" for _, share in shares],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    return figure(
        [trace],
        axis("explained share of the variance [%]", 100.0, rangemode="tozero"),
        axis("", ticks="", gridcolor="#FFFFFF", type="category"),
        height=110 + 34 * len(shares),
        margin={"l": 80, "r": 48, "t": 32, "b": 56},
        bargap=0.3,
    )


def importances(view: StudyView) -> dict[str, float]:
    """Return the share of the variance of the value that each searched parameter explains.

    The ratio ε² of an analysis of variance in one way (T. L. Kelley, PNAS 1935) of the logarithm of
    the value, over the distinct feasible designs found: the share that differences between the
    values of the parameter explain, less what as many groups explain by chance. Nothing where there
    are fewer than ten designs, or all are equal.
    """
    trials = {trial.point: trial for trial in feasible_trials(view)}
    points = [point for point in trials if point is not None]
    if len(points) < _FEWEST_DESIGNS:
        return {}
    logs = np.log([first_value(trials[point]) for point in points])
    whole = float(((logs - logs.mean()) ** 2).sum())
    if whole <= 0.0:
        return {}
    shares = {}
    for name, searched in view.summary.resolved.spec.space.searched.items():
        if len(searched.values) > 1:
            codes = np.array([searched.values.index(point[name]) for point in points])
            shares[name] = _explained(logs, codes, whole)
    return shares


def _explained(logs: Any, codes: Any, whole: float) -> float:
    """Return ε² of one grouping.

    Parameters
    ----------
    logs, codes : (designs,)
        Logarithm of the value, and number of the group.
    whole
        Sum of the squared deviations of ``logs`` from their mean.
    """
    counts = np.bincount(codes)
    means = np.bincount(codes, logs)[counts > 0] / counts[counts > 0]
    between = float((counts[counts > 0] * (means - logs.mean()) ** 2).sum())
    groups = len(means)
    if groups == 1 or groups >= len(logs):
        return 0.0
    within = (whole - between) / (len(logs) - groups)
    return max(0.0, (between - (groups - 1) * within) / whole)

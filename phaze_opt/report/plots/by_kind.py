"""The plots of a study by their names, with their titles and what they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from phaze_opt.choices import PlotKind
from phaze_opt.report.figure_style import Figure
from phaze_opt.report.plots.area import area
from phaze_opt.report.plots.breakdown import breakdown
from phaze_opt.report.plots.history import history
from phaze_opt.report.plots.importance import importance
from phaze_opt.report.plots.parallel import parallel
from phaze_opt.report.study_view import StudyView
from phaze_opt.report.study_words import IMPORTANCE_WORDS

PLOT_KINDS: tuple[PlotKind, ...] = get_args(PlotKind)

TITLES: Mapping[PlotKind, str] = {
    "history": "Best so far",
    "area": "Value against chip area",
    "parallel": "The best architectures",
    "breakdown": "Where the time of a batch goes",
    "importance": "What decides: one step from the best design",
}

NOTES: Mapping[PlotKind, str] = {
    "history": "Every feasible trial, the best one so far, and what it is compared with.",
    "area": "Every feasible trial; the line is the front: nothing found is better and smaller.",
    "parallel": "Each line is one design, the best one red; a column spans the values found. "
    "Values within 0.1 % of the best count as equal to it.",
    "breakdown": "The time of one batch by what it is spent on.",
    "importance": "The best design with one axis a step down or up, the others kept, and the "
    f"placement solved anew; a green bar is better than all trials. {IMPORTANCE_WORDS}",
}

_DRAWERS: Mapping[PlotKind, Callable[[StudyView], Figure]] = {
    "history": history,
    "area": area,
    "parallel": parallel,
    "breakdown": breakdown,
    "importance": importance,
}


def plot(view: StudyView, kind: PlotKind) -> Figure:
    """Draw one plot of a study."""
    return _DRAWERS[kind](view)


def all_plots(view: StudyView) -> dict[PlotKind, Figure]:
    """Draw all plots of a study."""
    return {kind: plot(view, kind) for kind in PLOT_KINDS}

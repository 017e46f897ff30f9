"""The tables and plots of a result, as ``print(result)`` and a notebook show them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import RenderableType

from phaze_opt.errors import unknown_name
from phaze_opt.report.layout import to_html, to_text

if TYPE_CHECKING:
    from phaze_opt.report.figure_style import Figure

_DRAWN_BY = {
    "Accelerator": ("tables", "accelerator_tables"),
    "BestDesign": ("studies", "best_tables"),
    "Cluster": ("tables", "cluster_tables"),
    "Evaluation": ("tables", "evaluation_tables"),
    "Explanation": ("explanation", "explanation_tables"),
    "Placement": ("tables", "placement_tables"),
    "Study": ("studies", "study_tables"),
    "StudySummary": ("studies", "summary_table"),
    "Workload": ("tables", "workload_tables"),
}
"""Module of this room, and function of it, by the class of a result.

By name: whoever prints a chip need not import studies.
"""


def result_tables(result: object) -> RenderableType:
    """Return the tables of a result of one of the classes that print as tables."""
    name = next(kind.__name__ for kind in type(result).__mro__ if kind.__name__ in _DRAWN_BY)
    module, function = _DRAWN_BY[name]
    room = importlib.import_module(f"{__package__}.{module}")
    tables: RenderableType = getattr(room, function)(result)
    return tables


def written(result: object, form: Literal["text", "html"]) -> str:
    """Write a result as its tables, as text or as HTML."""
    tables = result_tables(result)
    return to_text(tables) if form == "text" else to_html(tables)


def drawn(result: object, kind: str) -> Any:
    """Return a plot of an evaluation or of a study as a figure of plotly's package.

    Raises
    ------
    InputError
        If there is no such plot of it.
    """
    graph_objects = importlib.import_module("plotly.graph_objects")
    figure = _figure(result, kind)
    return graph_objects.Figure(data=figure["data"], layout=figure["layout"])


def _figure(result: object, kind: str) -> Figure:
    """Draw a plot with its title."""
    from phaze_opt.evaluation import Evaluation
    from phaze_opt.report.figure_style import titled

    if isinstance(result, Evaluation):
        from phaze_opt.report.plots import of_evaluations as plots

        known = _known(kind, plots.EVALUATION_PLOT_KINDS, "plot of an evaluation")
        figure = plots.evaluation_plot({"this run": result}, known)
        return titled(figure, plots.EVALUATION_TITLES[known])
    from phaze_opt.report.plots.by_kind import PLOT_KINDS, TITLES, plot
    from phaze_opt.report.study_view import view_of

    of_study = _known(kind, PLOT_KINDS, "plot of a study")
    study: Any = result
    return titled(plot(view_of(study), of_study), TITLES[of_study])


def _known(kind: str, kinds: Sequence[Any], what: str) -> Any:
    """Return the name of a plot, which is one of them."""
    if kind not in kinds:
        raise unknown_name(what, kind, kinds)
    return kind

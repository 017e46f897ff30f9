"""The tables of a result, as ``print(result)`` and a notebook show them."""

from __future__ import annotations

import importlib
from typing import Literal

from rich.console import RenderableType

from phaze_opt.report.layout import to_html, to_text

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

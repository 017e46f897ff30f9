"""Tables of an enumeration."""

from __future__ import annotations

from rich.console import Group, RenderableType

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.layout import add_row, fitted, pairs, sentence
from phaze_opt.report.study_words import (
    ORDER_WORDS,
    accelerator_words,
    ratio_words,
    training_words,
    value_words,
)
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.study import Study
from phaze_opt.units import format_seconds
from phaze_opt.whole_space.enumerating import best_of_enumeration
from phaze_opt.whole_space.exhaustive import Enumeration

_SHOWN = 5


def enumeration_tables(study: Study, enumeration: Enumeration) -> RenderableType:
    """Show the best designs of a space, and how that is known."""
    spec = study.resolved.spec
    table = pairs()
    best = best_of_enumeration(study, enumeration)
    if best is None:
        add_row(table, "best", "nothing is feasible")
    else:
        add_row(table, "best", value_words(spec, best.metrics.values))
        add_row(table, "accelerator", accelerator_words(best.params))
        add_row(table, "training", training_words(best.params))
        for line in ratio_words(best):
            add_row(table, "against", line)
    add_row(table, "points", f"{enumeration.points:,} within the limits of the chip")
    bounded = f"{enumeration.bounded:,}, of which {enumeration.infeasible_proven:,} fit no memory"
    add_row(table, "bounded", bounded)
    add_row(
        table, "evaluated", f"{enumeration.evaluated:,}, of which {enumeration.feasible:,} feasible"
    )
    for level in enumeration.levels[:-1]:
        words = f"{level.closed:,} of {level.points:,} points left out"
        add_row(table, f"by {level.level}", f"{words}, in {format_seconds(level.wall_s)}")
    add_row(table, "time taken", format_seconds(enumeration.wall_s))
    add_row(table, "cost model", f"version {enumeration.version}")
    return Group(
        sentence(f"{study.name}: {_status_words(enumeration)}", style="bold"),
        table,
        *_top(study, enumeration),
    )


def _status_words(enumeration: Enumeration) -> str:
    """Say what is proven."""
    if enumeration.status == "certified":
        return "certified, no other design is better in this cost model"
    if enumeration.gap is None:
        return "not finished; how much better another design may be is not known yet"
    return f"not finished; another design may be up to {enumeration.gap:.1%} better"


def _top(study: Study, enumeration: Enumeration) -> list[RenderableType]:
    """List the first designs of the top."""
    if len(enumeration.top) < 2:
        return []
    columns = SearchedColumns(study.resolved.spec)
    rows = [
        (str(place), *columns.cells(DesignPoint(design.point), design.metrics))
        for place, design in enumerate(enumeration.top[:_SHOWN], start=1)
    ]
    return [sentence(""), fitted((">place", *columns.headers), rows), sentence(ORDER_WORDS)]

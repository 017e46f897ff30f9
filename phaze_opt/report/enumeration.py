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


def enumeration_tables(study: Study, found: Enumeration) -> RenderableType:
    """Show the best designs of a space, and how that is known."""
    spec = study.resolved.spec
    table = pairs()
    best = best_of_enumeration(study, found)
    if best is None:
        add_row(table, "best", "nothing is feasible")
    else:
        add_row(table, "best", value_words(spec, best.metrics.values))
        add_row(table, "accelerator", accelerator_words(best.params))
        add_row(table, "training", training_words(best.params))
        for line in ratio_words(best):
            add_row(table, "against", line)
    add_row(table, "points", f"{found.points:,} within the limits of the chip")
    bounded = f"{found.bounded:,}, of which {found.infeasible_proven:,} fit no memory"
    add_row(table, "bounded", bounded)
    add_row(table, "evaluated", f"{found.evaluated:,}, of which {found.feasible:,} feasible")
    for level in found.levels[:-1]:
        words = f"{level.closed:,} of {level.points:,} points left out"
        add_row(table, f"by {level.level}", f"{words}, in {format_seconds(level.wall_s)}")
    add_row(table, "time taken", format_seconds(found.wall_s))
    add_row(table, "cost model", f"version {found.version}")
    return Group(
        sentence(f"{study.name}: {_status_words(found)}", style="bold"), table, *_top(study, found)
    )


def _status_words(found: Enumeration) -> str:
    """Say what is proven."""
    if found.status == "certified":
        return "certified, no other design is better in this cost model"
    if found.gap is None:
        return "not finished; how much better another design may be is not known yet"
    return f"not finished; another design may be up to {found.gap:.1%} better"


def _top(study: Study, found: Enumeration) -> list[RenderableType]:
    """List the first designs of the top."""
    if len(found.top) < 2:
        return []
    columns = SearchedColumns(study.resolved.spec)
    rows = [
        (str(place), *columns.cells(DesignPoint(one.point), one.metrics))
        for place, one in enumerate(found.top[:_SHOWN], start=1)
    ]
    return [sentence(""), fitted((">place", *columns.headers), rows), sentence(ORDER_WORDS)]

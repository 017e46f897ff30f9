"""Tables of the front of a space."""

from __future__ import annotations

from rich.console import Group, RenderableType

from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.layout import add_row, fitted, pairs, sentence
from phaze_opt.spec.objectives import OBJECTIVES
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.study import Study
from phaze_opt.units import counted, format_seconds
from phaze_opt.whole_space.answers import Front
from phaze_opt.whole_space.front_search import FrontDesign

_SHOWN = 20


def front_tables(study: Study, front: Front) -> RenderableType:
    """Show the designs of a front, evenly spread where there are many."""
    enumeration, kinds = front.found, [OBJECTIVES[name] for name in front.objectives]
    directions = [
        f"{'most' if kind.maximise else 'least'} {kind.name.replace('_', ' ')}" for kind in kinds
    ]
    title = f"{study.name}: {counted(len(enumeration.designs), 'design')} that no other one beats"
    table = pairs()
    add_row(table, "objectives", ", ".join(directions))
    add_row(table, "points", f"{enumeration.points:,} within the limits of the chip")
    add_row(
        table, "evaluated", f"{enumeration.evaluated:,}, of which {enumeration.feasible:,} feasible"
    )
    add_row(table, "time taken", format_seconds(front.wall_s))
    add_row(table, "cost model", f"version {front.version}")
    parts: list[RenderableType] = [sentence(title, style="bold"), table]
    if enumeration.designs:
        columns = SearchedColumns(study.resolved.spec, kinds)
        shown = _spread(enumeration.designs)
        rows = [
            columns.cells(DesignPoint(design.design.point), design.design.metrics, design.values)
            for design in shown
        ]
        parts += [sentence(""), fitted(columns.headers, rows)]
        if len(shown) < len(enumeration.designs):
            words = f"{len(shown)} of {len(enumeration.designs):,} designs; --json has all of them."
            parts.append(sentence(words))
    return Group(*parts)


def _spread(designs: tuple[FrontDesign, ...]) -> list[FrontDesign]:
    """Return some designs at equal distances, both ends among them."""
    last = len(designs) - 1
    places = {round(place * last / (_SHOWN - 1)) for place in range(_SHOWN)}
    return [designs[place] for place in sorted(places)]

"""Drawings of operator graphs: Graphviz DOT, and a self-contained HTML page."""

from __future__ import annotations

import html
import json
from pathlib import Path

from phaze_opt.errors import InputError
from phaze_opt.units import format_bytes
from phaze_opt.user_files import write_file
from phaze_opt.workload.graph import Operator, OperatorGraph
from phaze_opt.workload.summary import operator_kind

_COLOURS = {"gemm": "#9ecae1", "fused": "#c6a5e0", "collective": "#fdae6b", "vector": "#c7e9c0"}
_MARGIN = 160
"""Pixels right of the boxes for edges that pass operators."""


def to_dot(graph: OperatorGraph, title: str) -> str:
    """Return the graph in the DOT language."""
    lines = [
        f"digraph {json.dumps(title)} {{",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica"];',
    ]
    for index, operator in enumerate(graph.operators):
        label = json.dumps("\n".join(_label(operator)), ensure_ascii=False)
        lines.append(f'  n{index} [label={label}, fillcolor="{_colour(operator)}"];')
    for source, destination, size in graph.edges:
        lines.append(f'  n{source} -> n{destination} [label="{format_bytes(size)}"];')
    return "\n".join([*lines, "}", ""])


def to_html(graph: OperatorGraph, title: str) -> str:
    """Return a page with the graph drawn as SVG, operators in layers by depth; no script."""
    depth = _depths(graph)
    rows: dict[int, list[int]] = {}
    for index, level in enumerate(depth):
        rows.setdefault(level, []).append(index)
    width, height, gap = 250, 66, 34
    columns = max((len(row) for row in rows.values()), default=1)
    place = {
        index: (
            20 + (columns - len(row)) * (width + 20) // 2 + column * (width + 20),
            20 + level * (height + gap),
        )
        for level, row in rows.items()
        for column, index in enumerate(row)
    }
    shapes = [
        _arrow(place[source], place[destination], size, width, height)
        for source, destination, size in graph.edges
    ]
    shapes += [
        _box(operator, *place[index], width, height)
        for index, operator in enumerate(graph.operators)
    ]
    size = f'width="{columns * (width + 20) + _MARGIN}" height="{len(rows) * (height + gap) + 40}"'
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        "</title></head><body style='font-family:Helvetica,Arial,sans-serif'>"
        f"<h1>{html.escape(title)}</h1>"
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11">{"".join(shapes)}</svg>'
        "</body></html>\n"
    )


def write_drawing(graph: OperatorGraph, title: str, path: Path) -> None:
    """Draw a graph into a file; its suffix, ``.html`` or ``.dot``, chooses the form.

    Raises
    ------
    InputError
        If the file has another suffix.
    PhazeError
        If the file cannot be written.
    """
    drawers = {".html": to_html, ".dot": to_dot}
    if path.suffix not in drawers:
        raise InputError(f"The drawing is {str(path)!r}, but it must end in .html or .dot.")
    write_file(path, drawers[path.suffix](graph, title))


def _label(operator: Operator) -> list[str]:
    """Return the lines that describe an operator."""
    products = [f"{g.batch} × ({g.m} × {g.k} × {g.n})" for g in operator.gemms]
    kinds = ", ".join(work.kind for work in operator.vector)
    if operator.collective is not None:
        kinds = f"{operator.collective.kind} {format_bytes(operator.collective.size_bytes)}"
    traffic = (
        f"reads {format_bytes(operator.read_bytes)}, writes {format_bytes(operator.write_bytes)}"
    )
    what = " · ".join([*products[:1], *([f"+{len(products) - 1}"] if products[1:] else []), kinds])
    return [operator.id, what.strip(" ·"), traffic]


def _colour(operator: Operator) -> str:
    """Return the fill of an operator's box."""
    if operator.collective is not None:
        return _COLOURS["collective"]
    kind = operator_kind(operator)
    return _COLOURS.get(kind, _COLOURS["vector"])


def _depths(graph: OperatorGraph) -> list[int]:
    """Return the number of operators before each one on the longest path to it."""
    depth = [0] * len(graph.operators)
    for source, destination, _ in sorted(graph.edges):
        depth[destination] = max(depth[destination], depth[source] + 1)
    return depth


def _arrow(start: tuple[int, int], end: tuple[int, int], size: int, width: int, height: int) -> str:
    """Return an edge as a curve with its bytes as a tooltip."""
    x1, y1, x2, y2 = start[0] + width // 2, start[1] + height, end[0] + width // 2, end[1]
    middle = (y1 + y2) // 2
    curve = f"M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}"
    if y2 - y1 > height:
        # The edge passes operators: it goes round their right side, so that they do not hide it.
        x1, y1, x2, y2 = start[0] + width, start[1] + height // 2, end[0] + width, y2 + height // 2
        side = max(x1, x2) + _MARGIN // 2
        curve = f"M{x1},{y1} C{side},{y1} {side},{y2} {x2},{y2}"
    return f'<path d="{curve}" fill="none" stroke="#888"><title>{format_bytes(size)}</title></path>'


def _box(operator: Operator, x: int, y: int, width: int, height: int) -> str:
    """Return an operator as a box with its lines."""
    lines = "".join(
        f'<text x="{x + 8}" y="{y + 18 + 18 * row}">{html.escape(line[:44])}</text>'
        for row, line in enumerate(_label(operator))
    )
    return (
        f"<g><title>{html.escape(' | '.join(_label(operator)))}</title>"
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{_colour(operator)}" stroke="#555"/>{lines}</g>'
    )

"""Drawings of operator graphs: Graphviz DOT, and a self-contained HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from phaze_opt.errors import InputError
from phaze_opt.units import format_bytes
from phaze_opt.user_files import write_file
from phaze_opt.workload.graph import Operator, OperatorGraph
from phaze_opt.workload.summary import operator_kind

_COLOURS = {"gemm": "#9ecae1", "fused": "#c6a5e0", "collective": "#fdae6b", "vector": "#c7e9c0"}
_WORDS = {
    "gemm": "matrix products (tensor cores)",
    "fused": "products fused with vector work (both)",
    "vector": "vector work (vector lanes)",
    "collective": "collective (network)",
}
_ARROWHEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="#555"/></marker></defs>'
)
_LONGEST_LINE = 46
_MARGIN = 160
"""Pixels right of the boxes for edges that pass operators."""


def to_dot(graph: OperatorGraph, title: str, notes: Sequence[str] = ()) -> str:
    """Return the graph in the DOT language, with a legend; see `write_drawing`."""
    lines = [
        f"digraph {json.dumps(title)} {{",
        f'  label={json.dumps(title)}; labelloc=t; fontname="Helvetica";',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica"];',
    ]
    for index, (operator, label) in enumerate(
        zip(graph.operators, _labels(graph, notes), strict=True)
    ):
        text = json.dumps("\n".join(label), ensure_ascii=False)
        lines.append(f'  n{index} [label={text}, fillcolor="{_COLOURS[_kind(operator)]}"];')
    for source, destination, size in graph.edges:
        lines.append(f'  n{source} -> n{destination} [label="{format_bytes(size)}"];')
    kinds = _kinds(graph)
    if kinds:
        lines.append('  subgraph cluster_legend { label="legend"; style=dotted;')
        lines += [
            f'    legend_{kind} [label="{_WORDS[kind]}", fillcolor="{_COLOURS[kind]}"];'
            for kind in kinds
        ]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def to_html(graph: OperatorGraph, title: str, notes: Sequence[str] = ()) -> str:
    """Return a page with the graph drawn as SVG, operators in layers by depth; no script.

    See `write_drawing`.
    """
    depth = _depths(graph)
    rows: dict[int, list[int]] = {}
    for index, level in enumerate(depth):
        rows.setdefault(level, []).append(index)
    labels = _labels(graph, notes)
    width, height, gap = 270, 12 + 18 * max(map(len, labels), default=3), 40
    columns = max((len(row) for row in rows.values()), default=1)
    place = {
        index: (
            20 + (columns - len(row)) * (width + 20) // 2 + column * (width + 20),
            20 + level * (height + gap),
        )
        for level, row in rows.items()
        for column, index in enumerate(row)
    }
    ends = {level: max(place[index][0] for index in row) + width for level, row in rows.items()}
    shapes = []
    for source, destination, size in graph.edges:
        levels = range(depth[source], depth[destination] + 1)
        right = max(ends[level] for level in levels)
        shapes.append(_arrow(place[source], place[destination], size, width, height, right))
    shapes += [
        _box(operator, label, *place[index], width, height)
        for index, (operator, label) in enumerate(zip(graph.operators, labels, strict=True))
    ]
    extent = (
        f'width="{columns * (width + 20) + _MARGIN}" height="{len(rows) * (height + gap) + 40}"'
    )
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}'
        "</title></head><body style='font-family:Helvetica,Arial,sans-serif'>"
        f"<h1>{html.escape(title)}</h1>{_legend(graph, notes)}"
        f'<svg xmlns="http://www.w3.org/2000/svg" {extent} font-size="11">{_ARROWHEAD}'
        f"{''.join(shapes)}</svg></body></html>\n"
    )


def write_drawing(graph: OperatorGraph, title: str, path: Path, notes: Sequence[str] = ()) -> None:
    """Draw a graph into a file; its suffix, ``.html`` or ``.dot``, chooses the form.

    Parameters
    ----------
    graph, title
        What is drawn.
    path
        Where.
    notes
        One more line for every operator, for example its time; none if empty.

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
    write_file(path, drawers[path.suffix](graph, title, notes))


def _labels(graph: OperatorGraph, notes: Sequence[str]) -> list[list[str]]:
    """Return the lines that describe every operator."""
    labels = [
        _label(*row)
        for row in zip(graph.operators, graph.read_bytes, graph.write_bytes, strict=True)
    ]
    return [[*label, note] for label, note in zip(labels, notes, strict=True)] if notes else labels


def _label(operator: Operator, read_bytes: int, write_bytes: int) -> list[str]:
    """Return the lines that describe an operator."""
    products = [f"{g.batch} × ({g.m} × {g.k} × {g.n})" for g in operator.gemms]
    kinds = ", ".join(work.kind for work in operator.vector)
    if operator.collective is not None:
        sent = f"{operator.collective.kind} {format_bytes(operator.collective.size_bytes)}"
        kinds = ", ".join(filter(None, (kinds, sent)))
    traffic = f"reads {format_bytes(read_bytes)}, writes {format_bytes(write_bytes)}"
    what = " · ".join([*products[:1], *([f"+{len(products) - 1}"] if products[1:] else []), kinds])
    return [operator.id, what.strip(" ·"), traffic]


def _kind(operator: Operator) -> str:
    """Return the kind of an operator that its colour shows."""
    if operator.collective is not None and not operator.gemms:
        return "collective"
    kind = operator_kind(operator)
    return kind if kind in _COLOURS else "vector"


def _kinds(graph: OperatorGraph) -> list[str]:
    """Return the kinds of operators of a graph, in the order of the legend."""
    kinds = set(map(_kind, graph.operators))
    return [kind for kind in _WORDS if kind in kinds]


def _legend(graph: OperatorGraph, notes: Sequence[str]) -> str:
    """Say what colours, arrows and lines mean."""
    squares = "".join(
        f'<span style="display:inline-block;width:1em;height:1em;border:1px solid #555;'
        f'border-radius:3px;vertical-align:-2px;background:{_COLOURS[kind]}"></span> '
        f"{_WORDS[kind]} &nbsp; "
        for kind in _kinds(graph)
    )
    lines = "a box: its name, batch × (m × k × n) of its products, bytes of its operands"
    lines += ", and its time" if notes else ""
    return (
        f"<p>{squares}<br>{lines}; an arrow: a tensor, from the operator that writes it to one "
        "that reads it (its bytes under the pointer)</p>"
    )


def _depths(graph: OperatorGraph) -> list[int]:
    """Return the number of operators before each one on the longest path to it."""
    depth = [0] * len(graph.operators)
    for source, destination, _ in sorted(graph.edges):
        depth[destination] = max(depth[destination], depth[source] + 1)
    return depth


def _arrow(
    start: tuple[int, int], end: tuple[int, int], size: int, width: int, height: int, right: int
) -> str:
    """Return an edge as a curve with its bytes as a tooltip; nothing it passes ends after right."""
    x1, y1, x2, y2 = start[0] + width // 2, start[1] + height, end[0] + width // 2, end[1]
    middle = (y1 + y2) // 2
    curve = f"M{x1},{y1} C{x1},{middle} {x2},{middle} {x2},{y2}"
    if y2 - y1 > height:
        # The edge passes operators: it goes round their right side, so that they do not hide it.
        x1, y1, x2, y2 = start[0] + width, start[1] + height // 2, end[0] + width, y2 + height // 2
        # A curve comes three quarters of the way to what pulls it aside.
        side = max(x1, x2) + (right + _MARGIN // 5 - max(x1, x2)) * 4 // 3
        curve = f"M{x1},{y1} C{side},{y1} {side},{y2} {x2},{y2}"
    return (
        f'<path d="{curve}" fill="none" stroke="#777" stroke-width="1.3" marker-end="url(#head)">'
        f"<title>{format_bytes(size)}</title></path>"
    )


def _box(operator: Operator, label: Sequence[str], x: int, y: int, width: int, height: int) -> str:
    """Return an operator as a box with its lines."""
    lines = "".join(
        f'<text x="{x + 8}" y="{y + 18 + 18 * row}">{html.escape(shortened)}</text>'
        for row, line in enumerate(label)
        if (shortened := line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…")
    )
    return (
        f"<g><title>{html.escape(' | '.join(label))}</title>"
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        f'fill="{_COLOURS[_kind(operator)]}" stroke="#555"/>{lines}</g>'
    )

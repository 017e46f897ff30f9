"""How predictions compare with what was measured: tables for a terminal, and a page of plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phaze_opt.errors import InputError
from phaze_opt.report.layout import add_row, broken, grid, section, sentence
from phaze_opt.units import counted, format_bytes, format_seconds
from phaze_opt.user_files import write_file
from phaze_opt.validation.expressible import Expressible, PublicationCount
from phaze_opt.validation.measured import UnexpressedRow, ValidationRow, ValidationTable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SHOWN_PARTS: Mapping[str, tuple[str, ...]] = {
    "compute": ("forward", "backward", "recompute", "gradient_accumulation"),
    "collectives": (
        *("tensor_collectives", "token_exchanges"),
        *("gradient_synchronisation", "parameter_gather"),
    ),
    "transfers": ("transfer",),
    "bubble": ("bubble",),
    "optimizer": ("optimizer",),
}
"""What a row's time consists of, from the kinds of `ValidationRow.parts_s`."""

_WRITTEN: Mapping[str, Callable[[float], str]] = {
    "s": format_seconds,
    "B": format_bytes,
    "ratio": "{:.3f}".format,
}
"""How a value is written, by the unit of its table."""
_CASE_WIDTH = 30
_REASON_WIDTH = 34
_BAND = 0.1
_MOST_FACTOR = 10.0
_PLOT_COLUMNS = 3
_PANEL_PIXELS = 340
_GAP_SHARE = 0.3


def summary_table(tables: Sequence[ValidationTable]) -> RenderableType:
    """Show one line per table: its rows, its errors, and what belongs to its measurement."""
    shown = grid("table", "on", ">rows", ">mean", ">bias", ">worst", ">per call")
    for table in tables:
        per_call = f"{table.call_overhead_s * 1e6:.0f} µs" if table.call_overhead_s else ""
        add_row(
            shown,
            table.name,
            table.accelerator,
            _row_count(table),
            f"{table.mean_absolute_error:.1%}",
            f"{table.bias:+.1%}",
            f"{table.worst_error:+.1%}",
            per_call,
        )
    note = (
        "Relative errors of the prediction: the mean of their absolute values, their mean with "
        "sign (negative where predictions are too fast or too small), and the worst. A number of "
        "rows in brackets counts those that measure a set-up of their own."
    )
    return Group(shown, Text(), sentence(note))


def row_tables(tables: Sequence[ValidationTable]) -> RenderableType:
    """Show every row of every table, and what the time of a training run consists of."""
    return Group(
        *(
            section(f"{table.name} on {table.accelerator}", _rows(table), f"Source: {table.source}")
            for table in tables
        )
    )


def unexpressed_table(rows: Sequence[UnexpressedRow]) -> RenderableType:
    """Show the measured rows that the model cannot express, and why."""
    shown = grid("table", "row", "why it is left out")
    for row in rows:
        add_row(shown, row.table, broken(row.case, _CASE_WIDTH), broken(row.reason, _REASON_WIDTH))
    return section(f"Measured, but not expressed: {counted(len(rows), 'row')}", shown)


def validation_to_builtins(table: ValidationTable) -> dict[str, Any]:
    """Return one table as the plain data that ``validate --json`` prints."""
    return {
        "table": table.name,
        "accelerator": table.accelerator,
        "call_overhead_s": table.call_overhead_s,
        "mean_absolute_error": table.mean_absolute_error,
        "bias": table.bias,
        "worst_error": table.worst_error,
        "independent_rows": table.independent_rows,
        "source": table.source,
        "unit": table.unit,
        "rows": [
            {
                "case": row.case,
                "measured": row.measured,
                "predicted": row.predicted,
                "error": row.error,
                "assumed": row.assumed,
                "trust": row.trust,
                "source": row.source or table.source,
                "independent": row.independent,
                "repeats": row.repeats or None,
                "parts_s": dict(row.parts_s),
                "bound": row.bound or None,
                "factor_by_part": {
                    part: factor
                    for part, seconds in row.parts_s.items()
                    if (factor := row.factor_of(seconds)) is not None
                },
                "predicted_range": row.predicted_range,
                "closest": row.closest or None,
            }
            for row in table.rows
        ],
        "unexpressed": [],
    }


def unexpressed_to_builtins(name: str, rows: Sequence[UnexpressedRow]) -> dict[str, Any]:
    """Return the rows of a publication that are not expressed, with the keys of a table."""
    return {
        "table": name,
        "accelerator": None,
        "call_overhead_s": None,
        "mean_absolute_error": None,
        "bias": None,
        "worst_error": None,
        "independent_rows": 0,
        "source": None,
        "unit": None,
        "rows": [],
        "unexpressed": [{"case": row.case, "reason": row.reason} for row in rows],
    }


def expressible_tables(counted: Expressible) -> RenderableType:
    """Show how many published training runs can be expressed, and why others cannot."""
    total = counted.total()
    shown = grid(*EXPRESSIBLE_HEAD)
    for row in expressible_rows(counted):
        add_row(shown, *row)
    reasons = grid("reason", "why", ">rows")
    for each in counted.reasons:
        add_row(reasons, broken(each.reason, _REASON_WIDTH), KIND_WORDS[each.kind], str(each.rows))
    title = (
        f"Training runs published since {counted.first_year}: {total.expressible} of {total.rows} "
        f"can be expressed ({total.expressible / max(total.rows, 1):.1%})"
    )
    return Group(
        sentence(title, style="bold"),
        shown,
        sentence(EXPRESSIBLE_NOTE),
        section("Why runs are not compared", reasons),
    )


EXPRESSIBLE_HEAD = ("runs", ">all", ">compared", ">over options", ">undetermined", ">not")
EXPRESSIBLE_NOTE = (
    "Compared: predicted beside what was measured; over options: the source leaves the microbatch "
    "or the chunks of the pipeline open, and the fastest is compared; undetermined: the program "
    "can express all that the source leaves open, but not say what ran; not: the program lacks "
    "something. A run with several reasons counts with each."
)
KIND_WORDS = {"program": "the program lacks it", "publication": "the publication leaves it open"}


def expressible_rows(counted: Expressible) -> list[tuple[str, ...]]:
    """Return a row for every publication, and one for all of them, as text."""
    return [
        (
            each.table,
            str(each.rows),
            str(each.compared),
            str(each.compared_over_options),
            str(each.undetermined),
            str(each.inexpressible),
        )
        for each in (*counted.publications, counted.total())
    ]


def expressible_to_builtins(counted: Expressible) -> dict[str, Any]:
    """Return the counts as the plain data that ``validate --expressible --json`` prints."""

    def plain(each: PublicationCount) -> dict[str, Any]:
        return {
            "rows": each.rows,
            "expressible": each.expressible,
            "compared": each.compared,
            "compared_over_options": each.compared_over_options,
            "undetermined": each.undetermined,
            "inexpressible": each.inexpressible,
        }

    total = counted.total()
    return {
        "first_year": counted.first_year,
        **plain(total),
        "expressible_share": total.expressible / max(total.rows, 1),
        "publications": [{"table": each.table, **plain(each)} for each in counted.publications],
        "reasons": [
            {"reason": each.reason, "kind": each.kind, "rows": each.rows}
            for each in counted.reasons
        ],
    }


def write_plot(tables: Sequence[ValidationTable], path: Path) -> None:
    """Write a page with a panel per table, predicted against measured on logarithmic axes.

    Each panel has the line of equality and a band of ±10 %. The page holds all that it shows and
    loads nothing.

    Raises
    ------
    InputError
        If the file does not end in ``.html``, or there is nothing to plot.
    PhazeError
        If the file cannot be written.
    """
    if path.suffix != ".html":
        raise InputError(f"The plot is {str(path)!r}, but it must end in .html.")
    if not tables:
        raise InputError("There is nothing to plot: the group has no measured table.")
    from plotly.subplots import make_subplots

    panel_rows = -(-len(tables) // _PLOT_COLUMNS)
    figure: Figure = make_subplots(
        rows=panel_rows,
        cols=_PLOT_COLUMNS,
        subplot_titles=[
            f"{table.name} on {table.accelerator}<br>"
            f"<sup>mean {table.mean_absolute_error:.1%}, bias {table.bias:+.1%}</sup>"
            for table in tables
        ],
        # Room for a panel's axis, and the title of the one below.
        vertical_spacing=_GAP_SHARE / panel_rows,
    )
    for index, table in enumerate(tables):
        row, column = divmod(index, _PLOT_COLUMNS)
        _add_panel(figure, table, {"row": row + 1, "col": column + 1})
    figure.update_layout(
        title="phaze-opt: predicted against measured (lines: equal, and ±10 %)",
        showlegend=False,
        height=_PANEL_PIXELS * panel_rows + 120,
        template="plotly_white",
    )
    write_file(path, figure.to_html(include_plotlyjs=True, include_mathjax=False))


def _add_panel(figure: Figure, table: ValidationTable, place: Mapping[str, int]) -> None:
    """Draw one table: the line of equality, the band and the rows."""
    from plotly.graph_objects import Scatter

    values = [value for row in table.rows for value in (row.measured, row.predicted)]
    ends = [min(values) / 1.5, max(values) * 1.5]
    for factor, dash in ((1.0, "solid"), (1.0 + _BAND, "dot"), (1.0 - _BAND, "dot")):
        line = Scatter(
            x=ends,
            y=[factor * end for end in ends],
            mode="lines",
            line={"color": "grey", "width": 1, "dash": dash},
            hoverinfo="skip",
        )
        figure.add_trace(line, **place)
    points = Scatter(
        x=[row.measured for row in table.rows],
        y=[row.predicted for row in table.rows],
        mode="markers",
        marker={
            "size": 6,
            "color": "#1f77b4",
            "symbol": ["circle" if row.independent else "circle-open" for row in table.rows],
        },
        text=[f"{row.case}: {row.error:+.1%}" for row in table.rows],
        hovertemplate="%{text}<extra></extra>",
    )
    figure.add_trace(points, **place)
    figure.update_xaxes(type="log", title=f"measured [{table.unit}]", **place)
    figure.update_yaxes(type="log", title=f"predicted [{table.unit}]", **place)


def _row_count(table: ValidationTable) -> str:
    """Count the rows; where some measure a set-up again, also the independent ones."""
    count = len(table.rows)
    return str(count) if table.independent_rows == count else f"{count} ({table.independent_rows})"


def _rows(table: ValidationTable) -> Table:
    """Show the rows of one table; percentages of the predicted time beside training runs."""
    write = _WRITTEN[table.unit]
    parts = tuple(_SHOWN_PARTS) if any(row.parts_s for row in table.rows) else ()
    headers = ("comp", "coll", "tran", "bubb", "opt") if parts else ()
    shown = grid(
        "case", ">measured", ">predicted", ">error", *(f">{name}" for name in headers), gap=1
    )
    for row in table.rows:
        shares = [_share(row, part) for part in parts]
        case = "; ".join(
            words
            for words in (
                row.case,
                f"assumed: {row.assumed}" if row.assumed else "",
                f"repeats {row.repeats}" if row.repeats else "",
                f"trust {row.trust}" if row.trust not in ("", "high") else "",
                "host-bound" if row.bound == "host" else "",
                *_of_own(row),
            )
            if words
        )
        add_row(
            shown,
            broken(case, _CASE_WIDTH),
            write(row.measured),
            write(row.predicted),
            f"{row.error:+.1%}",
            *shares,
        )
    return shown


def _of_own(row: ValidationRow) -> Iterator[str]:
    """Say of a user's run what it may have taken, and what would explain the rest."""
    if row.predicted_range is None:
        return
    low_s, high_s = row.predicted_range
    yield f"range {format_seconds(low_s)} to {format_seconds(high_s)}"
    if row.closest and row.closest not in row.assumed:
        yield f"closest: {row.closest}"
    if abs(row.error) > _BAND:
        found = ((part, row.factor_of(_part_s(row, part))) for part in _SHOWN_PARTS)
        factors = [f"{part} × {factor:.2f}" for part, factor in found if _is_likely(factor)]
        if factors:
            yield f"would explain it: {' or '.join(factors)}"


def _is_likely(factor: float | None) -> bool:
    """Say whether a part may well be that much longer or shorter."""
    return factor is not None and 1.0 / _MOST_FACTOR < factor < _MOST_FACTOR


def _part_s(row: ValidationRow, part: str) -> float:
    """Return the predicted seconds of a part."""
    return sum(row.parts_s.get(kind, 0.0) for kind in _SHOWN_PARTS[part])


def _share(row: ValidationRow, part: str) -> str:
    """Return a part's share of the predicted time."""
    return f"{_part_s(row, part) / row.predicted:.0%}"

"""``phaze-opt validate``: the model against measured silicon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import JsonOption, print_json, print_table

if TYPE_CHECKING:
    from phaze_opt.report.validation import ValidationTable

RowsOption = Annotated[bool, typer.Option("--rows", help="Show every row, not only tables.")]

app = typer.Typer(no_args_is_help=True, help="Compare the model with measured silicon.")


@app.command()
def operators(
    rows: RowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every built-in measured operator with its estimate.

    Example: phaze-opt validate operators --rows
    """
    from phaze_opt.report.validation import validate_operators

    _show(validate_operators(), rows, as_json)


@app.command()
def training(
    rows: RowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every built-in measured training run with its evaluation.

    Example: phaze-opt validate training --rows
    """
    from phaze_opt.report.validation import validate_training

    _show(validate_training(), rows, as_json)


@app.command()
def memory(
    rows: RowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare every built-in published memory figure with the captured bytes.

    Example: phaze-opt validate memory --rows
    """
    from phaze_opt.report.validation import validate_memory

    _show(validate_memory(), rows, as_json)


def _show(tables: list[ValidationTable], rows: bool, as_json: bool) -> None:
    """Print tables, as data or for a person."""
    if as_json:
        print_json([_plain(table) for table in tables])
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table([_summary(table) for table in tables]))
    if rows:
        print_table(rows_table([line for table in tables for line in _lines(table)]))


def _plain(table: ValidationTable) -> dict[str, Any]:
    """Return one table as plain data."""
    return {
        "table": table.name,
        "accelerator": table.accelerator,
        "call_overhead_s": table.call_overhead_s,
        "mean_absolute_error": table.mean_absolute_error,
        "worst_error": table.worst_error,
        "source": table.source,
        "unit": table.unit,
        "rows": [
            {
                "case": row.case,
                "measured": row.measured,
                "predicted": row.predicted,
                "error": row.error,
            }
            for row in table.rows
        ],
    }


def _summary(table: ValidationTable) -> dict[str, Any]:
    """Return the line of one table."""
    return {
        "table": table.name,
        "accelerator": table.accelerator,
        "rows": len(table.rows),
        "mean |error|": f"{table.mean_absolute_error:.1%}",
        "worst": f"{table.worst_error:+.1%}",
        "call overhead": f"{table.call_overhead_s * 1e6:.0f} µs" if table.call_overhead_s else "",
    }


def _lines(table: ValidationTable) -> list[dict[str, Any]]:
    """Return one line per measured row."""
    from phaze_opt.units import format_bytes, format_seconds

    write = format_seconds if table.unit == "s" else format_bytes
    return [
        {
            "accelerator": table.accelerator,
            "case": row.case,
            "measured": write(row.measured),
            "predicted": write(row.predicted),
            "error": f"{row.error:+.1%}",
        }
        for row in table.rows
    ]

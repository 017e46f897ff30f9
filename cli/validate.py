"""``phaze-opt validate``: the model against measured silicon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .output import JsonOption, print_json, print_rows, print_table

if TYPE_CHECKING:
    from phaze_opt.validation.measured import ValidationTable

TableChoice = Literal["operators", "training", "memory"]


def validate(
    tables: Annotated[TableChoice | None, typer.Argument(help="All where left out.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Show every row, not only tables.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the model with every built-in measured row: operators, training runs, memory.

    Examples: phaze-opt validate; phaze-opt validate operators --rows
    """
    from phaze_opt.validation.measured import validate_memory, validate_operators, validate_training

    predict = {
        "operators": validate_operators,
        "training": validate_training,
        "memory": validate_memory,
    }
    chosen = [tables] if tables else list(predict)
    found = [table for name in chosen for table in predict[name]()]
    if as_json:
        print_json([_plain(table) for table in found])
        return
    print_rows([_summary(table) for table in found], as_json)
    for table in found if rows else ():
        _print_lines(table)


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


def _print_lines(table: ValidationTable) -> None:
    """Print one line per measured row of a table."""
    from phaze_opt.report.layout import section
    from phaze_opt.report.tables import rows_table
    from phaze_opt.units import format_bytes, format_seconds

    write = format_seconds if table.unit == "s" else format_bytes
    lines = [
        {
            "case": row.case,
            "measured": write(row.measured),
            "predicted": write(row.predicted),
            "error": f"{row.error:+.1%}",
        }
        for row in table.rows
    ]
    print_table(section(f"{table.name}, {table.accelerator}", rows_table(lines)))

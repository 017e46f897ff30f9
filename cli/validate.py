"""``phaze-opt validate``: the model against measured silicon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze_opt.choices import ValidationSubject
from phaze_opt.errors import InputError

from .output import ForceOption, JsonOption, check_outputs, print_json, print_table, say

if TYPE_CHECKING:
    from phaze_opt.validation.registry import Validation


def validate(
    subject: Annotated[
        ValidationSubject | None,
        typer.Argument(help="A group of tables, all where left out; or a trace, with its FILE."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Trace of the PyTorch profiler, .json or .json.gz.", show_default=False
        ),
    ] = None,
    rows: Annotated[
        bool,
        typer.Option(
            "--rows", help="Show every row, what its time consists of, and rows left out."
        ),
    ] = False,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show tables that say little too; JSON always has them."),
    ] = False,
    csv_file: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Your own measured runs (training) or operators, one per line; see the docs.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(help="On what a trace was recorded.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="HTML", help="Plot predicted against measured."),
    ] = None,
    expressible: Annotated[
        bool,
        typer.Option(
            "--expressible",
            help="Count the published training runs that can be expressed, and why others cannot; "
            "predicts nothing.",
        ),
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the model with every built-in measured row, or with your own.

    Examples: phaze-opt validate; phaze-opt validate training --rows;
    phaze-opt validate training --csv runs.csv;
    phaze-opt validate trace trace.json.gz --accelerator h100;
    phaze-opt validate --expressible
    """
    if expressible:
        if subject not in (None, "training") or any(
            (file, csv_file, accelerator, rows, every, plot)
        ):
            raise InputError(
                "--expressible counts training runs and predicts nothing; leave out other groups, "
                "files, --accelerator, --rows, --all and --plot."
            )
        _show_expressible(as_json)
        return
    check_outputs(plot, force=force)
    validations = _validations(subject, file, accelerator, csv_file)
    if file is not None or csv_file is not None:
        # Of one's own rows none says too little.
        rows = every = True
    if plot is not None:
        from phaze_opt.report.validation import write_plot

        write_plot([table for validation in validations for table in validation.tables], plot)
        say(f"Written to {plot}.")
    if as_json:
        print_json(_plain(validations))
    else:
        _show(validations, rows, every)


def _validations(
    subject: ValidationSubject | None,
    file: Path | None,
    accelerator: str | None,
    csv_file: Path | None,
) -> list[Validation]:
    """Predict what is built in, or what a file of the user holds."""
    from phaze_opt.validation import registry

    if subject == "trace":
        if file is None or accelerator is None or csv_file is not None:
            raise InputError("Give the file of the trace and --accelerator, and no --csv.")
        return [registry.validate_own_trace(file, accelerator)]
    if file is not None or accelerator is not None:
        raise InputError("A file and --accelerator belong to phaze-opt validate trace.")
    if csv_file is not None:
        return [registry.validate_own(subject, csv_file)]
    return [registry.validate(name) for name in ([subject] if subject else registry.GROUPS)]


def _show_expressible(as_json: bool) -> None:
    """Print how many published training runs can be expressed."""
    from phaze_opt.report.validation import expressible_tables, expressible_to_builtins
    from phaze_opt.validation.expressible import count_expressible

    counted = count_expressible()
    if as_json:
        print_json(expressible_to_builtins(counted))
    else:
        print_table(expressible_tables(counted))


def _plain(validations: Sequence[Validation]) -> list[dict[str, Any]]:
    """Return all tables as plain data; rows left out stand with the first of their table."""
    from phaze_opt.report.validation import unexpressed_to_builtins, validation_to_builtins

    plain = []
    for validation in validations:
        plain += [validation_to_builtins(table) for table in validation.tables]
        for name in dict.fromkeys(row.table for row in validation.unexpressed):
            rows = [row for row in validation.unexpressed if row.table == name]
            left_out = unexpressed_to_builtins(name, rows)
            own = next((table for table in plain if table["table"] == name), None)
            if own is None:
                plain.append(left_out)
            else:
                own["unexpressed"] = left_out["unexpressed"]
    return plain


def _show(validations: Sequence[Validation], rows: bool, every: bool) -> None:
    """Print the tables for a person."""
    from phaze_opt.report.validation import row_tables, summary_table, unexpressed_table

    known = [table for validation in validations for table in validation.tables]
    tables = [table for table in known if every or not table.minor]
    left_out = [row for validation in validations for row in validation.unexpressed]
    if tables or not left_out:
        print_table(summary_table(tables))
    if len(tables) < len(known):
        say(f"{len(known) - len(tables)} tables that say little are left out; --all shows them.")
    if rows:
        print_table(row_tables(tables))
        if left_out:
            print_table(unexpressed_table(left_out))
    elif left_out:
        say(f"{len(left_out)} measured rows cannot be expressed; --rows says why.")

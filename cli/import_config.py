"""``phaze-opt import-config``: a run of a training framework as one of this tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import JsonOption, print_json, print_table


def import_config(
    file: Annotated[
        Path,
        typer.Argument(
            help="Arguments of Megatron-LM (a list, or the script that starts it), a TOML of "
            "torchtitan or a YAML of MaxText.",
            show_default=False,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Instead of the one that it states.", show_default=False),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="Which it runs on.", show_default=False)
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Which network joins them.", show_default=False)
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="How many, if not stated.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read the configuration of a training framework: a command that evaluates it, and a CSV row.

    Nothing is executed; what is not known, or cannot be expressed, is said.

    Example: phaze-opt import-config train.sh --accelerator h100 --cluster dgx-h100
    """
    from phaze_opt.interchange.framework_config import import_config as read

    found = read(file, model=model, accelerator=accelerator, cluster=cluster, devices=devices)
    from phaze_opt.report.imported import imported_to_builtins, notes_view, row_text

    if as_json:
        print_json(imported_to_builtins(found))
        return
    # As they are, whatever the width of the terminal: both are copied.
    print(f"{found.command}\n\nAs a row of phaze-opt validate training --csv:\n{row_text(found)}\n")
    print_table(notes_view(found))

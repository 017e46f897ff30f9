"""``phaze-opt study compare``: studies of one question, against the optimum and each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import (
    ForceOption,
    JsonOption,
    StorageOption,
    check_outputs,
    print_json,
    print_table,
    say,
)
from .study_storage import open_database


def compare(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of studies.", show_default=False)
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Also plot the best values.", show_default=False),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    storage: StorageOption = None,
) -> None:
    """Compare searches of one question: how good they are, how soon, and what they wasted.

    The measure is the certified optimum, once 'study enumerate' has found it, else the best known.

    Example: phaze-opt study compare by-climb by-bound --html compared.html
    """
    from phaze_opt.study.study import load_study
    from phaze_opt.whole_space.comparing import compare as compare_studies
    from phaze_opt.whole_space.comparing import comparison_to_json_dict

    opened = open_database(storage)
    studies = [load_study(name, opened) for name in names]
    check_outputs(html, force=force)
    compared = compare_studies(studies)
    if html is not None:
        from phaze_opt.report.comparison import write_comparison

        write_comparison(compared, html)
        say(f"{html} holds the plot.")
    if as_json:
        print_json(comparison_to_json_dict(compared))
    else:
        from phaze_opt.report.comparison import comparison_tables

        print_table(comparison_tables(compared))

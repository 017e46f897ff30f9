"""``phaze-opt report`` and ``phaze-opt plot``: a study as files that a browser opens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from phaze_opt.choices import PlotKind
from phaze_opt.errors import InputError

from .output import ForceOption, StorageOption, check_outputs, say
from .study_storage import open_study

_REPORT_TRIALS = 1_000


def report(
    name: Annotated[str, typer.Argument(help="Name of the study.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write.", show_default=False)
    ],
    file_format: Annotated[
        Literal["html", "markdown"] | None,
        typer.Option("--format", help="By default as the file's name ends: .html or .md."),
    ] = None,
    force: ForceOption = False,
    storage: StorageOption = None,
) -> None:
    """Write the answer of a study, with its plots and certificate, into one file.

    An HTML report holds all that it shows, and opens without a network.

    Example: phaze-opt report quickstart --output report.html

    Example: phaze-opt report quickstart --format markdown --output report.md
    """
    from phaze_opt.report.markdown import report_markdown
    from phaze_opt.report.page import report_page
    from phaze_opt.report.study_view import view_of
    from phaze_opt.user_files import write_file

    chosen = file_format or {".html": "html", ".md": "markdown"}.get(output.suffix)
    if chosen is None:
        raise InputError(
            f"The report is {str(output)!r}, but its name must end in .html or .md, or --format "
            "must say html or markdown."
        )
    study = open_study(name, storage)
    check_outputs(output, force=force)
    view = view_of(study, _REPORT_TRIALS, evaluate=True)
    write_file(output, report_page(view) if chosen == "html" else report_markdown(view))
    say(f"{output} holds the report of {name}.")


def plot(
    name: Annotated[str, typer.Argument(help="Name of the study.", show_default=False)],
    kind: Annotated[
        PlotKind,
        typer.Argument(help="What to draw.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="File: .html, .png or .svg.", show_default=False),
    ],
    force: ForceOption = False,
    storage: StorageOption = None,
) -> None:
    """Draw one plot of a study; .png and .svg need a Chromium on this machine.

    history: the best so far; area: value against chip area; parallel: the best architectures;
    breakdown: the time of a batch; importance: what one step from the best design costs.

    Example: phaze-opt plot quickstart area -o area.html
    """
    from phaze_opt.report.images import picture
    from phaze_opt.report.page import plot_page
    from phaze_opt.report.plots.by_kind import plot as draw
    from phaze_opt.report.study_view import view_of
    from phaze_opt.user_files import write_file

    if output.suffix not in (".html", ".png", ".svg"):
        raise InputError(f"The plot is {str(output)!r}, but it must end in .html, .png or .svg.")
    study = open_study(name, storage)
    check_outputs(output, force=force)
    view = view_of(study, evaluate=kind == "importance")
    if output.suffix == ".html":
        write_file(output, plot_page(view, kind))
    else:
        write_file(output, picture(draw(view, kind), output.suffix.removeprefix(".")))
    say(f"{output} holds the plot.")

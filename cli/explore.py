"""``phaze-opt explore``: change the options of a run in a browser, and see what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .output import say

if TYPE_CHECKING:
    from phaze_opt.report.explore import PageControl

    from .explored import PointAnswers

_FIRST_POINT = {
    "model": "bert-large",
    "accelerator": "h100",
    "cluster": "dgx-h100",
    "devices": "64",
    "global_batch": "1024",
    "microbatch": "1",
}
"""What the page begins with, where the command line names no files."""

_OFTEN = ("recompute", "optimizer", "placement", "zero", "precision", "attention", "software")
"""Options that stand beside those that must be stated."""


def explore(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Another model to choose: a configuration or capture.", metavar="FILE"),
    ] = None,
    accelerator: Annotated[
        list[str] | None, typer.Option(help="Another accelerator to choose.", metavar="FILE")
    ] = None,
    cluster: Annotated[
        list[str] | None, typer.Option(help="Another network to choose.", metavar="FILE")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; there is no login, so keep it local.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8081,
) -> None:
    """Change the options of a training run in a browser, until Ctrl-C; two runs side by side.

    The page shows throughput with its range, where time and memory go, what binds and what would
    help, and gives the run as a command, as Python, as a study file and as a link. It reads the
    files that are named here, and no others, and changes nothing.

    For example:

        phaze-opt explore

        phaze-opt explore --accelerator my-chip.toml --model config.json
    """
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.report.explore import make_explorer
    from phaze_opt.report.guard import is_local
    from phaze_opt.report.point_view import size_values

    from .explored import READY, PointAnswers

    answers = PointAnswers(
        tuple(
            (option, tuple(paths or ()))
            for option, paths in (
                ("model", model),
                ("accelerator", accelerator),
                ("cluster", cluster),
            )
        )
    )
    answers.check_files()
    controls = page_controls(answers)
    chip = next(control.default for control in controls if control.name == "accelerator")
    sizes = size_values(load_accelerator(chip))
    server, pages = make_explorer(controls, sizes, answers, READY, host, port)
    if not is_local(host):
        say(
            f"warning: whoever reaches {host} may use this machine to evaluate runs, without a "
            "login. Safer is the default host, seen from elsewhere through 'ssh -L "
            f"{server.server_port}:localhost:{server.server_port} THIS-MACHINE'."
        )
    say(f"what-if page {server.address} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
    finally:
        pages.close()


def page_controls(answers: PointAnswers) -> Sequence[PageControl]:
    """Return a control for every option of a point: what must be stated and what is changed often.

    Parameters
    ----------
    answers
        Which names they may have.
    """
    from phaze_opt.report.explore import PageControl

    from .controls import controls
    from .explored import FILE_OPTIONS

    named = {option: answers.names(option) for option in FILE_OPTIONS}
    given = {option: paths[0] for option, paths in answers.files if paths}
    first = {**_FIRST_POINT, **given}
    suggested = {"placement": ("solve", "expert"), "model": named["model"]}
    return [
        PageControl(
            name=control.name,
            label=control.label,
            kind="choice" if control.name in ("accelerator", "cluster") else control.kind,
            help=control.help,
            choices=control.choices or suggested.get(control.name) or named.get(control.name, ()),
            default=first.get(control.name) or control.default or "",
            often=control.default is None or control.name in _OFTEN,
        )
        for control in controls()
    ]

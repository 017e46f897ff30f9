"""``phaze-opt spec``: check study files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import JsonOption, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Check study files.")


@app.callback()
def spec() -> None:
    """Check study files."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Study file (TOML).", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Check a study file, presets and cluster included, without storing anything.

    Example: phaze-opt spec check studies/quickstart.toml
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.search.frozen import check_names
    from phaze_opt.search.spec import read_spec

    checked = read_spec(file)
    limit_mm2 = check_names(checked).area_limit_mm2
    if as_json:
        print_json({"spec": to_builtins(checked), "area_limit_mm2": limit_mm2})
        return
    from phaze_opt.report.tables import pairs_table

    pairs = {
        "model": checked.model,
        "devices": f"{checked.devices} ({checked.cluster})",
        "points": f"{checked.space.points:,}",
        "area limit": f"{limit_mm2:.6g} mm² ({checked.area.model})",
        "search": f"{checked.search.trials} trials, {checked.search.sampler}",
        "baselines": ", ".join(checked.baselines),
    }
    print_table(pairs_table(f"{checked.name}: valid", pairs))

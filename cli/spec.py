"""``phaze-opt spec``: check study files, begin new ones, and describe them to editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phaze_opt.choices import AreaModel

from .output import ForceOption, JsonOption, check_outputs, print_json, print_table, write_new_file

app = typer.Typer(no_args_is_help=True, help="Check study files, and begin new ones.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Study file (TOML).", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Check a study file as 'study create' does, and say what a run will meet; nothing is stored.

    Some points are drawn and evaluated: how many are feasible, and how long one takes.

    Example: phaze-opt spec check studies/quickstart.toml
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.spec.study_spec import read_spec
    from phaze_opt.study.spec_check import check_spec

    checked = check_spec(read_spec(file))
    if as_json:
        print_json(
            {
                "spec": to_builtins(checked.resolved.spec),
                "area_limit_mm2": checked.resolved.area_limit_mm2,
                "area_model": checked.resolved.spec.area.model,
                "points": checked.points,
                "points_within_limits": checked.within_limits,
                "sampled": checked.sampled,
                "within_area": checked.within_area,
                "evaluated": checked.evaluated,
                "feasible": checked.feasible,
                "feasible_share": checked.feasible_share,
                "seconds_per_point": checked.seconds_per_point,
                "boxes_s": checked.boxes_s,
                "trials_s": checked.trials_s,
                "unbounded_limits": list(checked.resolved.spec.unbounded_limits),
                "baselines": [
                    {
                        "name": baseline.name,
                        "in_space": baseline.name not in checked.outside,
                        "outside": checked.outside.get(baseline.name),
                    }
                    for baseline in checked.resolved.baselines
                ],
            }
        )
        return
    from phaze_opt.report.specs import spec_table

    print_table(spec_table(checked))


@app.command()
def schema(
    output: Annotated[
        Path | None,
        typer.Option(help="File to write; by default it is printed.", show_default=False),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Print the JSON schema of study files, for editors that complete and check TOML.

    Example: phaze-opt spec schema --output study.schema.json
    """
    import json

    from phaze_opt.spec.schema import spec_schema
    from phaze_opt.user_files import write_file

    from .output import say

    if output is None:
        print_json(spec_schema())
        return
    check_outputs(output, force=force)
    write_file(output, json.dumps(spec_schema(), indent=2) + "\n")
    say(f"{output} holds the schema.")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What the study is called.")],
    base: Annotated[str, typer.Option(help="Preset or file whose sizes are varied.")],
    model: Annotated[str, typer.Option(help="Zoo name, gpt:…, llama:…, moe:…, hf:PATH, or .json.")],
    cluster: Annotated[str, typer.Option(help="Network preset or file.")] = "tpuv4-ici-flat",
    devices: Annotated[int, typer.Option(help="How many accelerators.")] = 64,
    global_batch: Annotated[int, typer.Option(help="Samples per optimizer step.")] = 256,
    area: Annotated[AreaModel, typer.Option(help="Area model of the limit.")] = "chip",
    output: Annotated[
        Path | None, typer.Option(help="The file; NAME.toml by default.", show_default=False)
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a commented study file around a chip, to be changed.

    Example: phaze-opt spec new mine --base h100 --model llama3-8b --cluster dgx-h100
    """
    from phaze_opt.spec.study_spec import check_study_name
    from phaze_opt.spec.template import spec_text

    check_study_name(name)
    text = spec_text(
        name,
        base=base,
        model=model,
        cluster=cluster,
        devices=devices,
        global_batch=global_batch,
        area_model=area,
    )
    write_new_file(output, name, text, force=force)

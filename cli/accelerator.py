"""``phaze-opt accelerator``: the presets and their numbers, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .accelerator_compare import compare
from .output import (
    ChangesOption,
    ForceOption,
    JsonOption,
    PresetArgument,
    print_json,
    print_rows,
    print_table,
    read_assignments,
    say,
    write_new_file,
)

if TYPE_CHECKING:
    from phaze_opt.hardware.accelerator import Accelerator

app = typer.Typer(no_args_is_help=True, help="Look at accelerators, and write one's own.")


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: phaze-opt accelerator ls
    """
    from phaze_opt.hardware.presets import accelerator_presets

    chips = {name: preset.accelerator for name, preset in accelerator_presets().items()}
    if as_json:
        print_json([_summary(name, chip) for name, chip in chips.items()])
        return
    rows = [
        {
            "name": name,
            "tensor cores": f"{chip.num_tc} × {chip.pe_x}×{chip.pe_y}",
            "vector cores": f"{chip.num_vc} × {chip.pe_vc}",
            "TFLOP/s": round(chip.peak_flops_per_s / 1e12, 1),
            "GLB MiB": chip.glb_bytes / 2**20,
            "HBM GiB": chip.hbm_bytes / 2**30,
            "HBM GB/s": chip.hbm_bytes_per_s / 1e9,
        }
        for name, chip in chips.items()
    ]
    print_rows(rows, as_json)


@app.command()
def show(name: PresetArgument, changes: ChangesOption = None, as_json: JsonOption = False) -> None:
    """Show every number of an accelerator, its area, and where the numbers come from.

    The JSON, written as a file, is the same accelerator.

    Example: phaze-opt accelerator show tpuv4-phaze --set hbm_gib=80
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.hardware.chip_file import derived_numbers
    from phaze_opt.hardware.presets import configure_accelerator
    from phaze_opt.report.tables import accelerator_tables

    preset = configure_accelerator(name, read_assignments(changes))
    provenance = to_builtins(preset.provenance)
    if as_json:
        chip = preset.accelerator
        plain = {"name": name, **to_builtins(chip), **derived_numbers(chip)}
        described = {"description": preset.description or None, "provenance": provenance}
        print_json({**plain, **described})
        return
    title = f"{name}: {preset.description}" if preset.description else name
    print_table(accelerator_tables(preset.accelerator, title, provenance))


@app.command()
def check(name: PresetArgument, as_json: JsonOption = False) -> None:
    """Check an accelerator's file, and say where each of its numbers comes from.

    A file states fields as 'accelerator show' names them, or in units: glb_mib, hbm_gib,
    hbm_gb_per_s, clock_ghz, peak_tflops (instead of a clock), l2_tc_kib, l2_vc_kib. With
    'base = "h100"' it states only what differs. What it leaves out is derived or a default. An
    hbm_gib of 0 is a chip without HBM.

    Example: phaze-opt accelerator check mine.toml
    """
    from phaze_opt.hardware.buildable import check_chip
    from phaze_opt.hardware.chip_file import derived_numbers
    from phaze_opt.hardware.fields import chip_values
    from phaze_opt.hardware.presets import find_accelerator
    from phaze_opt.report.tables import named_in_units

    preset = find_accelerator(name)
    check_chip(preset.accelerator)
    values = chip_values(preset.accelerator)
    origins = {name: preset.origins.get(name, "preset") for name in values}
    if as_json:
        fields = [
            {"field": name, "value": value, "origin": origins[name]}
            for name, value in values.items()
        ]
        print_json({"fields": fields, **derived_numbers(preset.accelerator)})
        return
    rows = []
    for name, value in values.items():
        shown_name, shown = named_in_units(name, value)
        rows.append({"field": shown_name, "value": shown, "origin": origins[name]})
    print_rows(rows, as_json)
    if preset.assumed:
        say(
            f"{len(preset.assumed)} numbers are not stated but derived or defaults; 'evaluate' "
            "warns where one of them binds."
        )


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="What the accelerator is called.")],
    base: Annotated[
        str, typer.Option("--from", help="Preset or file whose numbers it begins with.")
    ] = "tpuv4-lanes",
    changes: ChangesOption = None,
    output: Annotated[
        Path | None, typer.Option(help="The file; NAME.toml by default.", show_default=False)
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a commented TOML file of an accelerator, to be changed and given to any command.

    Example: phaze-opt accelerator new mine --from h100 --set hbm_gib=141 --output mine.toml
    """
    from dataclasses import replace

    from phaze_opt.hardware.chip_file import chip_file_text
    from phaze_opt.hardware.presets import configure_accelerator

    preset = configure_accelerator(base, read_assignments(changes))
    described = f"{name}, from {base}"
    if preset.description:
        described += f" ({preset.description})"
    write_new_file(
        output, name, chip_file_text(replace(preset, description=described)), force=force
    )


app.command()(compare)


def _summary(name: str, chip: Accelerator) -> dict[str, Any]:
    """Return an accelerator as ``accelerator ls --json`` prints it."""
    return {
        "name": name,
        "num_tc": chip.num_tc,
        "pe_x": chip.pe_x,
        "pe_y": chip.pe_y,
        "num_vc": chip.num_vc,
        "pe_vc": chip.pe_vc,
        # The same in words, as in 0.1.
        "cores": f"{chip.num_tc} TC {chip.pe_x}×{chip.pe_y}, {chip.num_vc} VC {chip.pe_vc}",
        "peak_tflops": chip.peak_flops_per_s / 1e12,
        "glb_mib": chip.glb_bytes / 2**20,
        "hbm_gib": chip.hbm_bytes / 2**30,
        "hbm_gb_per_s": chip.hbm_bytes_per_s / 1e9,
        "clock_ghz": chip.clock_hz / 1e9,
    }

"""``phaze-opt accelerator``: the presets and their numbers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .output import JsonOption, print_json, print_table, read_assignments

app = typer.Typer(no_args_is_help=True, help="Look at accelerators.")


@app.command("ls")
def list_all(as_json: JsonOption = False) -> None:
    """List the presets.

    Example: phaze-opt accelerator ls
    """
    from phaze_opt.hardware.presets import accelerator_presets

    rows = [
        {
            "name": name,
            "cores": f"{chip.num_tc} TC {chip.pe_x}×{chip.pe_y}, {chip.num_vc} VC {chip.pe_vc}",
            "peak_tflops": round(chip.peak_flops_per_s / 1e12, 1),
            "glb_mib": round(chip.glb_bytes / 2**20, 2),
            "hbm_gib": round(chip.hbm_bytes / 2**30, 2),
            "hbm_gb_per_s": round(chip.hbm_bytes_per_s / 1e9, 1),
        }
        for name, chip in (
            (name, preset.accelerator) for name, preset in accelerator_presets().items()
        )
    ]
    if as_json:
        print_json(rows)
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table(rows))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every number of an accelerator, its area, and where the numbers come from.

    Example: phaze-opt accelerator show tpuv4-phaze --set hbm_gib=80
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.hardware.presets import accelerator_presets, load_accelerator

    chip = load_accelerator(name, read_assignments(changes or []))
    preset = accelerator_presets().get(name)
    plain: dict[str, Any] = {
        "name": name,
        **to_builtins(chip),
        "area_mm2": _area_or_none(chip),
        "peak_flops_per_s": chip.peak_flops_per_s,
        "description": None if preset is None else preset.description,
        "provenance": {} if preset is None else to_builtins(preset.provenance),
    }
    if as_json:
        print_json(plain)
        return
    from phaze_opt.report.tables import accelerator_table

    print_table(accelerator_table(plain))


def _area_or_none(chip: Any) -> float | None:
    """Return the area, or nothing where a memory lies outside the area model."""
    from phaze_opt.errors import InputError

    try:
        return float(chip.area_mm2)
    except InputError:
        return None

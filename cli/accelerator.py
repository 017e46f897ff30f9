"""``phaze-opt accelerator``: the presets and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import JsonOption, print_json, print_table, read_assignments

if TYPE_CHECKING:
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.hardware.presets import AcceleratorPreset

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

    chip = load_accelerator(name, **read_assignments(changes or []))
    preset = accelerator_presets().get(name)
    plain: dict[str, Any] = {
        "name": name,
        **to_builtins(chip),
        **_derived(chip),
        "description": None if preset is None else preset.description,
        "provenance": {} if preset is None else _provenance(preset, chip),
    }
    if as_json:
        print_json(plain)
        return
    from phaze_opt.report.tables import accelerator_table

    print_table(accelerator_table(plain))


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)],
    second: Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Show the numbers in which two accelerators differ, and the second over the first.

    Example: phaze-opt accelerator compare tpuv4-phaze tpuv4-lanes
    """
    from phaze_opt.hardware.presets import load_accelerator

    chips = load_accelerator(first), load_accelerator(second)
    one, other = (_numbers(chip) for chip in chips)
    rows = [
        {"field": name, first: one[name], second: other[name], "ratio": ratio}
        for name, ratio in ((name, _ratio(one[name], other[name])) for name in one)
        if one[name] != other[name]
    ]
    if as_json:
        print_json(rows)
        return
    from phaze_opt.report.tables import rows_table

    shown = [{**row, "ratio": _ratio_words(row["ratio"])} for row in rows]
    print_table(rows_table(shown or [{"difference": "none"}]))


def _provenance(preset: AcceleratorPreset, chip: Accelerator) -> dict[str, Any]:
    """Return where the numbers of a preset come from, but for those that were changed."""
    from phaze_opt.codec import to_builtins

    before, now = _numbers(preset.accelerator), _numbers(chip)
    stated: dict[str, Any] = to_builtins(preset.provenance)
    changed = {"source": "changed by --set", "confidence": ""}
    return {
        name: origin if before[name] == now[name] else changed for name, origin in stated.items()
    }


def _numbers(chip: Accelerator) -> dict[str, Any]:
    """Return every number of a chip by name, those of its calibration and the derived ones too."""
    from phaze_opt.codec import to_builtins

    plain = to_builtins(chip)
    calibration = plain.pop("calibration")
    measured = {f"calibration.{name}": value for name, value in calibration.items()}
    return {**plain, **measured, **_derived(chip)}


def _derived(chip: Accelerator) -> dict[str, float | None]:
    """Return what follows from the fields; no area where a memory lies outside the area model."""
    from phaze_opt.errors import InputError

    numbers: dict[str, float | None] = {"peak_flops_per_s": chip.peak_flops_per_s}
    try:
        numbers["area_mm2"] = chip.area_mm2
        numbers["area_chip_mm2"] = chip.area_under("chip")
    except InputError:
        numbers["area_mm2"] = numbers["area_chip_mm2"] = None
    return numbers


def _ratio(one: object, other: object) -> float | None:
    """Return the second over the first, where both are numbers."""
    if isinstance(one, bool) or isinstance(other, bool):
        return None
    if isinstance(one, int | float) and isinstance(other, int | float) and one:
        return other / one
    return None


def _ratio_words(ratio: float | None) -> str:
    """Write a ratio, or nothing."""
    return "" if ratio is None else f"{ratio:.3g}×"

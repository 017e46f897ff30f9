"""``phaze-opt accelerator``: the presets and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import (
    ChangesOption,
    JsonOption,
    print_json,
    print_rows,
    print_table,
    read_assignments,
)

if TYPE_CHECKING:
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.hardware.presets import AcceleratorPreset

app = typer.Typer(no_args_is_help=True, help="Look at accelerators.")

NameArgument = Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)]


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
def show(name: NameArgument, changes: ChangesOption = None, as_json: JsonOption = False) -> None:
    """Show every number of an accelerator, its area, and where the numbers come from.

    Example: phaze-opt accelerator show tpuv4-phaze --set hbm_gib=80
    """
    from phaze_opt.codec import to_builtins
    from phaze_opt.hardware.presets import find_accelerator, load_accelerator
    from phaze_opt.report.tables import accelerator_tables, derived_numbers

    chip = load_accelerator(name, **read_assignments(changes))
    preset = find_accelerator(name)
    description = preset.description or None
    provenance = _provenance(preset, chip)
    if as_json:
        plain = {"name": name, **to_builtins(chip), **derived_numbers(chip)}
        print_json({**plain, "description": description, "provenance": provenance})
        return
    title = name if description is None else f"{name}: {description}"
    print_table(accelerator_tables(chip, title, provenance))


@app.command()
def compare(first: NameArgument, second: NameArgument, as_json: JsonOption = False) -> None:
    """Show the numbers in which two accelerators differ, and the second over the first.

    Example: phaze-opt accelerator compare tpuv4-phaze tpuv4-lanes
    """
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.report.tables import accelerator_numbers

    one, other = (accelerator_numbers(load_accelerator(name)) for name in (first, second))
    rows = [
        {"field": name, first: one[name], second: other[name], "ratio": ratio}
        for name, ratio in ((name, _ratio(one[name], other[name])) for name in one)
        if one[name] != other[name]
    ]
    if not as_json:
        rows = [{**row, "ratio": _ratio_words(row["ratio"])} for row in rows]
        rows = rows or [{"difference": "none"}]
    print_rows(rows, as_json)


def _summary(name: str, chip: Accelerator) -> dict[str, Any]:
    """Return an accelerator as ``accelerator ls --json`` prints it."""
    return {
        "name": name,
        "cores": f"{chip.num_tc} TC {chip.pe_x}×{chip.pe_y}, {chip.num_vc} VC {chip.pe_vc}",
        "peak_tflops": round(chip.peak_flops_per_s / 1e12, 1),
        "glb_mib": round(chip.glb_bytes / 2**20, 2),
        "hbm_gib": round(chip.hbm_bytes / 2**30, 2),
        "hbm_gb_per_s": round(chip.hbm_bytes_per_s / 1e9, 1),
    }


def _provenance(preset: AcceleratorPreset, chip: Accelerator) -> dict[str, Any]:
    """Return where the numbers of a preset come from, but for those that were changed."""
    from phaze_opt.codec import to_builtins
    from phaze_opt.report.tables import accelerator_numbers

    before, now = accelerator_numbers(preset.accelerator), accelerator_numbers(chip)
    stated: dict[str, Any] = to_builtins(preset.provenance)
    changed = {"source": "changed by --set", "confidence": ""}
    return {
        name: origin if before[name] == now[name] else changed for name, origin in stated.items()
    }


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

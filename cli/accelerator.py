"""``phaze-opt accelerator``: the presets and their numbers, and files of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import (
    ChangesOption,
    JsonOption,
    PresetArgument,
    print_json,
    print_rows,
    print_table,
    read_assignments,
    say,
    write_new_file,
)
from .point import OptimizerChoice, RecomputeChoice

if TYPE_CHECKING:
    from phaze_opt.hardware.accelerator import Accelerator
    from phaze_opt.training import Training

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
    'base = "h100"' it states only what differs. What it leaves out is derived or a default.

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
    write_new_file(output, name, chip_file_text(replace(preset, description=described)))


@app.command()
def compare(
    first: PresetArgument,
    second: PresetArgument,
    model: Annotated[
        str | None,
        typer.Option(help="Also compare how fast they train this model.", show_default=False),
    ] = None,
    cluster: Annotated[str, typer.Option(help="Network of both, with --model.")] = "dgx-h100",
    devices: Annotated[int, typer.Option(help="How many of each, with --model.")] = 64,
    global_batch: Annotated[int, typer.Option(help="Samples per step, with --model.")] = 256,
    microbatch: Annotated[int, typer.Option(help="Samples at a time, with --model.")] = 1,
    recompute: Annotated[RecomputeChoice, typer.Option(help="With --model.")] = "none",
    optimizer: Annotated[OptimizerChoice, typer.Option(help="With --model.")] = "adam",
    zero: Annotated[int, typer.Option(help="ZeRO stage, with --model.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Show the numbers in which two accelerators differ, and the second over the first.

    Example: phaze-opt accelerator compare h100 mine.toml --model llama3-8b
    """
    from phaze_opt.hardware.presets import load_accelerator
    from phaze_opt.report.tables import accelerator_numbers

    chips = load_accelerator(first), load_accelerator(second)
    one, other = (accelerator_numbers(chip) for chip in chips)
    if model is not None:
        from phaze_opt.training import Training

        training = Training(global_batch, microbatch, recompute, optimizer, zero=zero)
        runs = _run_both(chips, model, cluster, devices, training)
        one, other = ({**numbers, **run} for numbers, run in zip((one, other), runs, strict=True))
    names = ("first", "second") if first == second else (first, second)
    rows = [
        {"field": name, names[0]: one[name], names[1]: other[name], "ratio": ratio}
        for name, ratio in ((name, _ratio(one[name], other[name])) for name in one)
        if one[name] != other[name]
    ]
    if not as_json:
        rows = [_in_units(row, names) for row in rows]
        rows = rows or [{"difference": "none"}]
    print_rows(rows, as_json)


def _run_both(
    chips: tuple[Accelerator, Accelerator],
    model: str,
    cluster: str,
    devices: int,
    training: Training,
) -> list[dict[str, Any]]:
    """Return what each of two chips achieves in the same run, by name."""
    from phaze_opt.evaluation import evaluate
    from phaze_opt.network.presets import load_cluster
    from phaze_opt.report.words import binding_words
    from phaze_opt.workload.zoo import load_workload

    network = load_cluster(cluster, devices)
    workload = load_workload(model, microbatch=(training.microbatch,))
    runs = []
    for chip in chips:
        found = evaluate(workload, chip, network, training)
        placement = found.placement
        runs.append(
            {
                "throughput, samples/s": found.throughput_samples_per_s,
                "tokens/s per device": found.tokens_per_s_per_device,
                "TFLOP/s per device": found.tflops_per_device,
                "MFU": found.mfu,
                "bound by": binding_words(found).partition(",")[0],
                "placement": None if placement is None else placement.degrees_text,
            }
        )
    return runs


def _summary(name: str, chip: Accelerator) -> dict[str, Any]:
    """Return an accelerator as ``accelerator ls --json`` prints it."""
    return {
        "name": name,
        "cores": f"{chip.num_tc} TC {chip.pe_x}×{chip.pe_y}, {chip.num_vc} VC {chip.pe_vc}",
        "peak_tflops": chip.peak_flops_per_s / 1e12,
        "glb_mib": chip.glb_bytes / 2**20,
        "hbm_gib": chip.hbm_bytes / 2**30,
        "hbm_gb_per_s": chip.hbm_bytes_per_s / 1e9,
        "clock_ghz": chip.clock_hz / 1e9,
    }


def _ratio(one: object, other: object) -> float | None:
    """Return the second over the first, where both are numbers."""
    if isinstance(one, bool) or isinstance(other, bool):
        return None
    if isinstance(one, int | float) and isinstance(other, int | float) and one:
        return other / one
    return None


def _in_units(row: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Return a row of the comparison in the units in which files state the number."""
    from phaze_opt.report.tables import named_in_units

    shown = [named_in_units(row["field"], row[name]) for name in names]
    known = {field for (field, _), name in zip(shown, names, strict=True) if row[name] is not None}
    # One of both may not have the number; both have it in the same unit, or as it is.
    field = known.pop() if len(known) == 1 else row["field"]
    values = [row[name] for name in names] if field == row["field"] else [one for _, one in shown]
    return {
        "field": field,
        **dict(zip(names, values, strict=True)),
        "ratio": _ratio_words(row["ratio"]),
    }


def _ratio_words(ratio: float | None) -> str:
    """Write a ratio, or nothing."""
    return "" if ratio is None else f"{ratio:.3g}×"

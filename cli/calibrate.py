"""``phaze-opt calibrate``: the constants of a chip from somebody's own measurements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phaze_opt.errors import InputError

from .output import ForceOption, JsonOption, check_outputs, print_json, print_table, say

if TYPE_CHECKING:
    from phaze_opt.calibration.calibrate import Calibrated, CalibratedTable
    from phaze_opt.calibration.constants import FittedConstant


RowsChoice = Literal["burst", "sustained"]


def calibrate(
    chip: Annotated[str, typer.Argument(help="Preset or TOML file.", show_default=False)],
    gemm: Annotated[
        Path | None, typer.Option(help="CSV with m,n,k[,batch][,layout],latency_s (bf16).")
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            help="CSV with batch,sequence,heads,kv_heads,head_dim[,head_dim_v][,causal][,window]"
            "[,backward],latency_s."
        ),
    ] = None,
    collectives: Annotated[
        Path | None, typer.Option(help="CSV with kind,devices,bytes,latency_s (one level).")
    ] = None,
    vector: Annotated[Path | None, typer.Option(help="CSV with op,rows,columns,latency_s.")] = None,
    rows: Annotated[
        RowsChoice,
        typer.Option(
            help="What products and attention are: kernels timed alone, or those of long runs."
        ),
    ] = "burst",
    cluster: Annotated[
        str | None,
        typer.Option(help="Preset or TOML file: the network of --collectives as it is stated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="TOML file for the chip; a network goes beside it, as .cluster.toml."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a chip's few constants to measured operators, and say what the rows determine.

    Times are those of single kernels in seconds. A constant is fitted; or limited, where the rows
    reject the stated value but bound the constant on one side only; or kept, where they accept the
    stated value or say nothing about it.

    Example: phaze-opt calibrate a100-80 --gemm products.csv --output mine.toml
    """
    from phaze_opt.calibration import measured_files
    from phaze_opt.calibration.calibrate import Measurements
    from phaze_opt.calibration.calibrate import calibrate as fit
    from phaze_opt.hardware.presets import find_accelerator
    from phaze_opt.network.presets import find_cluster

    if output is not None and output.suffix != ".toml":
        raise InputError(f"--output is {str(output)!r}, but the file's name must end in .toml.")
    if cluster is not None and collectives is None:
        raise InputError("--cluster is the network of measured collectives; give --collectives.")
    given: dict[Any, Path | None] = {
        "gemm": gemm,
        "attention": attention,
        "collectives": collectives,
        "vector": vector,
    }
    if not any(given.values()):
        raise InputError("Give at least one of --gemm, --attention, --collectives and --vector.")
    base = find_accelerator(chip)
    network = None if cluster is None else find_cluster(cluster)
    measured = Measurements(
        files={name: path.name for name, path in given.items() if path is not None},
        gemm=measured_files.read_products(gemm) if gemm else (),
        attention=measured_files.read_attention(attention) if attention else (),
        collectives=measured_files.read_collectives(collectives) if collectives else (),
        vector=measured_files.read_vector(vector) if vector else (),
        sustained=rows == "sustained",
    )
    for name, path in given.items():
        if path is not None and not getattr(measured, name):
            raise InputError(f"The CSV file {path} has no rows.")
    result = fit(base, measured, network)
    written = [] if output is None else _write(result, output, force)
    if as_json:
        print_json(_plain(chip, result, written))
    else:
        _show(chip, result)
        for path in written:
            say(f"{path} holds the calibrated {'network' if path != output else 'chip'}.")


def _write(result: Calibrated, output: Path, force: bool) -> list[Path]:
    """Write the chip, and the network beside it; return the files."""
    from phaze_opt.hardware.chip_file import chip_file_text
    from phaze_opt.network.cluster_file import cluster_file_text
    from phaze_opt.user_files import write_file

    files = {output: chip_file_text(result.chip)}
    if result.cluster is not None:
        files[output.with_suffix(".cluster.toml")] = cluster_file_text(result.cluster)
    check_outputs(*files, force=force)
    for path, text in files.items():
        write_file(path, text)
    return list(files)


def _plain(chip: str, result: Calibrated, written: list[Path]) -> dict[str, Any]:
    """Return everything as plain data."""
    from phaze_opt.codec import to_builtins

    cluster = None if result.cluster is None else to_builtins(result.cluster)
    return {
        "base": chip,
        "tables": [_plain_table(table) for table in result.tables],
        "constants": [
            {"table": table.name, **_plain_constant(constant)}
            for table in result.tables
            for constant in table.fit.constants
        ],
        "accelerator": to_builtins(result.chip.accelerator),
        "cluster": cluster,
        "written": [str(path) for path in written],
    }


def _plain_table(table: CalibratedTable) -> dict[str, Any]:
    """Return the residuals of one table."""
    return {
        "table": table.name,
        "file": table.file,
        "rows": table.rows,
        "rows_used": table.rows_used,
        "mean_absolute_error": table.fit.mean_absolute_error,
        "bias": table.fit.bias,
        "worst_error": table.fit.worst_error,
        "errors": table.fit.errors.tolist(),
    }


def _plain_constant(constant: FittedConstant) -> dict[str, Any]:
    """Return one constant; a value that the chip does not state is none."""
    return {
        "name": constant.name,
        "unit": constant.unit,
        "value": constant.value if math.isfinite(constant.value) else None,
        "standard_error": constant.standard_error,
        "origin": constant.origin,
        "determined": constant.determined,
        "at_bound": constant.at_bound,
    }


def _show(chip: str, result: Calibrated) -> None:
    """Print the residuals and the constants for a person."""
    from rich.console import Group

    from phaze_opt.report.layout import section
    from phaze_opt.report.tables import rows_table

    residuals = [
        {
            "table": table.name,
            "rows": table.rows,
            "used": table.rows_used,
            "mean |error|": f"{table.fit.mean_absolute_error:.1%}",
            "bias": f"{table.fit.bias:+.1%}",
            "worst": f"{table.fit.worst_error:+.1%}",
        }
        for table in result.tables
    ]
    print_table(
        Group(
            section(f"Residuals of {chip}, calibrated", rows_table(residuals)),
            *(
                section(f"Constants from {table.name}", rows_table(_constant_rows(table)))
                for table in result.tables
            ),
        )
    )


def _constant_rows(table: CalibratedTable) -> list[dict[str, Any]]:
    """Return the constants of a table for a person."""
    return [
        {
            "constant": constant.name,
            "value": constant.value if math.isfinite(constant.value) else None,
            "±": _error_words(constant),
            "unit": constant.unit,
            "origin": constant.origin + (", at its bound" if constant.at_bound else ""),
        }
        for constant in table.fit.constants
    ]


def _error_words(constant: FittedConstant) -> str:
    """Write the standard error of a constant."""
    if constant.standard_error is None:
        return "not determined"
    return f"{constant.standard_error:.2g}"

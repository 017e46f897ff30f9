"""``phaze-opt estimate``: one operator on one accelerator, or a file of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError

from .output import read_assignments

if TYPE_CHECKING:
    from phaze_opt.estimator.single import SingleEstimate
    from phaze_opt.hardware.accelerator import Accelerator

app = typer.Typer(no_args_is_help=True, help="Time and energy of one operator.")

AcceleratorOption = Annotated[str, typer.Option(help="Preset name or TOML file.")]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the accelerator."),
]
CoresOption = Annotated[
    int | None, typer.Option(help="Cores the operator may use; all by default.")
]
OverheadOption = Annotated[
    float, typer.Option("--call-overhead-us", help="What a framework adds per call, in µs.")
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="JSON is what this command prints anyway.")
]
CsvOption = Annotated[
    Path | None,
    typer.Option("--csv", help="One operator per line; JSON lines in the same order come out."),
]


@app.command()
def gemm(
    accelerator: AcceleratorOption,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Reduction.")] = None,
    batch: Annotated[int, typer.Option(help="Independent products.")] = 1,
    cores: CoresOption = None,
    call_overhead_us: OverheadOption = 0.0,
    csv_file: CsvOption = None,
    changes: ChangesOption = None,
    as_json: JsonLinesOption = True,
) -> None:
    """Estimate a matrix product (bf16), or every row of a CSV with columns m,n,k[,batch].

    Example: phaze-opt estimate gemm --accelerator a100-80 --m 8192 --n 4096 --k 4096 --json
    """
    from phaze_opt.estimator.single import estimate_gemm
    from phaze_opt.workload.graph import Gemm

    chip = _load(accelerator, changes)

    def one(shape: Gemm) -> SingleEstimate:
        return estimate_gemm(shape, chip, cores, call_overhead_us * 1e-6)

    if csv_file is not None:
        _run_csv(
            csv_file,
            ("m", "n", "k"),
            lambda row: one(
                Gemm(
                    _whole(row, "m"), _whole(row, "n"), _whole(row, "k"), _whole(row, "batch", "1")
                )
            ),
        )
        return
    if m is None or n is None or k is None:
        raise InputError("Give --m, --n and --k, or --csv FILE.")
    _print(one(Gemm(m, n, k, batch)))


@app.command()
def vector(
    accelerator: AcceleratorOption,
    op: Annotated[str | None, typer.Option(help="softmax, layernorm, gelu, ...")] = None,
    shape: Annotated[str | None, typer.Option(help="ROWSxCOLUMNS, for example 4096x1024.")] = None,
    cores: CoresOption = None,
    call_overhead_us: OverheadOption = 0.0,
    csv_file: CsvOption = None,
    changes: ChangesOption = None,
    as_json: JsonLinesOption = True,
) -> None:
    """Estimate a vector operator (bf16), or every row of a CSV with columns op,rows,columns.

    Example: phaze-opt estimate vector --accelerator a100-80 --op softmax --shape 4096x1024
    """
    from phaze_opt.estimator.single import estimate_vector

    chip = _load(accelerator, changes)

    def one(kind: str, rows: int, columns: int) -> SingleEstimate:
        return estimate_vector(kind, rows, columns, chip, cores, call_overhead_us * 1e-6)

    if csv_file is not None:
        _run_csv(
            csv_file,
            ("op", "rows", "columns"),
            lambda row: one(row["op"], _whole(row, "rows"), _whole(row, "columns")),
        )
        return
    if op is None or shape is None:
        raise InputError("Give --op and --shape, or --csv FILE.")
    parts = shape.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--shape is {shape!r}, but it must be ROWSxCOLUMNS, such as 4096x1024.")
    _print(one(op, int(parts[0]), int(parts[1])))


def _load(name: str, changes: list[str] | None) -> Accelerator:
    """Read the accelerator with its changed fields."""
    from phaze_opt.hardware.presets import load_accelerator

    return load_accelerator(name, **read_assignments(changes or []))


def _print(estimate: SingleEstimate) -> None:
    """Print one estimate as a line of JSON."""
    print(json.dumps(asdict(estimate), allow_nan=False))


def _run_csv(
    path: Path, columns: tuple[str, ...], one: Callable[[Mapping[str, str]], SingleEstimate]
) -> None:
    """Estimate every row; nothing is printed unless all rows are valid."""
    from phaze_opt.codec import read_file

    text = read_file(path, "CSV file").decode("utf-8", errors="replace")
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in columns if name not in (reader.fieldnames or [])]
    if missing:
        raise InputError(f"The CSV file {path} has no column {missing[0]!r}.")
    lines: list[SingleEstimate] = []
    for number, row in enumerate(reader, start=2):
        try:
            lines.append(one(row))
        except InputError as error:
            raise InputError(f"Line {number} of {path}: {error}") from None
    for line in lines:
        _print(line)


def _whole(row: Mapping[str, str | None], column: str, default: str | None = None) -> int:
    """Read one whole number of a row."""
    text = row.get(column) or default or ""
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{column} is {text!r}, but it must be a whole number.") from None

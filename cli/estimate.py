"""``phaze-opt estimate``: one operator on one accelerator, or a file of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phaze_opt.errors import InputError

from .output import ChangesOption, read_assignments, takes

if TYPE_CHECKING:
    from phaze_opt.estimator.single import SingleEstimate
    from phaze_opt.hardware.accelerator import Accelerator

app = typer.Typer(no_args_is_help=True, help="Time and energy of one operator.")


@dataclass(frozen=True)
class EstimateOptions:
    """The options that all operators share."""

    accelerator: Annotated[str, typer.Option(help="Preset name or TOML file.")]
    changes: ChangesOption = None
    cores: Annotated[
        int | None, typer.Option(help="Cores the operator may use; all by default.")
    ] = None
    call_overhead_us: Annotated[
        float, typer.Option("--call-overhead-us", help="What a framework adds per call, in µs.")
    ] = 0.0
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", help="One operator per line; JSON lines in the same order come out."),
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON is what this command prints anyway.")
    ] = True

    def load_accelerator(self) -> Accelerator:
        """Read the accelerator with its changed fields."""
        from phaze_opt.hardware.presets import load_accelerator

        return load_accelerator(self.accelerator, **read_assignments(self.changes))

    @property
    def call_overhead_s(self) -> float:
        """What a framework adds per call."""
        return self.call_overhead_us * 1e-6


@app.command()
@takes(EstimateOptions)
def gemm(
    options: EstimateOptions,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the result.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the result.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Reduction.")] = None,
    batch: Annotated[int, typer.Option(help="Independent products.")] = 1,
) -> None:
    """Estimate a matrix product (bf16), or every row of a CSV with columns m,n,k[,batch].

    Example: phaze-opt estimate gemm --accelerator a100-80 --m 8192 --n 4096 --k 4096 --json
    """
    from phaze_opt.estimator.single import estimate_gemm
    from phaze_opt.workload.graph import Gemm

    chip = options.load_accelerator()

    def one(shape: Gemm) -> SingleEstimate:
        return estimate_gemm(shape, chip, options.cores, options.call_overhead_s)

    def one_row(row: Mapping[str, str]) -> SingleEstimate:
        m, n, k = (_whole(row, column) for column in ("m", "n", "k"))
        return one(Gemm(m, n, k, batch=_whole(row, "batch", "1")))

    if options.csv_file is not None:
        _run_csv(options.csv_file, ("m", "n", "k"), one_row)
        return
    if m is None or n is None or k is None:
        raise InputError("Give --m, --n and --k, or --csv FILE.")
    _print(one(Gemm(m, n, k, batch)))


@app.command()
@takes(EstimateOptions)
def vector(
    options: EstimateOptions,
    op: Annotated[str | None, typer.Option(help="softmax, layernorm, gelu, ...")] = None,
    shape: Annotated[str | None, typer.Option(help="ROWSxCOLUMNS, for example 4096x1024.")] = None,
) -> None:
    """Estimate a vector operator (bf16), or every row of a CSV with columns op,rows,columns.

    Example: phaze-opt estimate vector --accelerator a100-80 --op softmax --shape 4096x1024
    """
    from phaze_opt.estimator.single import estimate_vector

    chip = options.load_accelerator()

    def one(kind: str, rows: int, columns: int) -> SingleEstimate:
        return estimate_vector(kind, rows, columns, chip, options.cores, options.call_overhead_s)

    def one_row(row: Mapping[str, str]) -> SingleEstimate:
        return one(row["op"], _whole(row, "rows"), _whole(row, "columns"))

    if options.csv_file is not None:
        _run_csv(options.csv_file, ("op", "rows", "columns"), one_row)
        return
    if op is None or shape is None:
        raise InputError("Give --op and --shape, or --csv FILE.")
    parts = shape.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise InputError(f"--shape is {shape!r}, but it must be ROWSxCOLUMNS, such as 4096x1024.")
    _print(one(op, int(parts[0]), int(parts[1])))


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

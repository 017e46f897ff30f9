"""Parts that commands share: options, JSON and tables on stdout, notes on stderr."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phaze_opt.choices import ResidencyChoice, ResidencyName
from phaze_opt.errors import InputError
from phaze_opt.printing import printable, printable_json, without_passwords

if TYPE_CHECKING:
    from rich.console import RenderableType

    from phaze_opt.evaluation import Evaluation

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="SQLite or PostgreSQL URL; else PHAZE_STORAGE, else sqlite:///phaze.db.",
        show_default=False,
    ),
]
PresetArgument = Annotated[
    str, typer.Argument(help="Preset, or TOML or JSON file.", show_default=False)
]
ResidencyOption = Annotated[
    ResidencyName,
    typer.Option(
        "--residency",
        help="What stays in the global buffer, or a GPU's L2, between operators: whole tensors; or "
        "also tiles of them, where operators run tile by tile; or none (--no-residency).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists already.")]
"""Of every command that writes files, which it gives to `check_outputs`."""
ChangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a number of the accelerator: glb_mib=64, calibration.hbm_efficiency=0.9, …",
    ),
]
PointChangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a number of the accelerator or of a level of the network: glb_mib=64, "
        "calibration.hbm_efficiency=0.9, network.0.latency_us=2, …",
    ),
]


FrozenOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Do not train parameters or modules of this name; * is any letters between two dots: "
        "embedding, block.*.feed_forward. Repeat for more.",
        metavar="PATTERN",
        show_default=False,
    ),
]
LoraOption = Annotated[
    int,
    typer.Option(
        "--lora",
        help="Train low-rank adapters of this rank alone, in bf16, instead of the model.",
        metavar="RANK",
        show_default=False,
    ),
]
LoraTargetsOption = Annotated[
    str,
    typer.Option(
        help="Linear layers with an adapter, with commas; all by default: linear_qkv, linear_proj, "
        "linear_fc1, linear_fc2.",
        show_default=False,
    ),
]


def trained_options(
    frozen: Sequence[str] | None, lora_rank: int, lora_targets: str
) -> dict[str, Any]:
    """Return what of a model is trained, as arguments of `load_workload`."""
    targets = [name.strip() for name in lora_targets.split(",")] if lora_targets else []
    return {"frozen": frozen or (), "lora_rank": lora_rank, "lora_targets": targets}


def takes(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a dataclass.

    Parameters
    ----------
    options
        The dataclass, with annotations as typer reads them. An instance is the command's first
        argument; the command's other parameters stay options of its own.
    """
    shared = inspect.signature(options, eval_str=True).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = options(**{name: values.pop(name) for name in shared})
            command(given, **values)

        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in (*shared.values(), *own)
        ]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        return run

    return decorate


def read_assignments(pairs: Sequence[str] | None) -> dict[str, str]:
    """Read the ``key=value`` pairs of ``--set``.

    Raises
    ------
    InputError
        If a pair has no ``=``.
    """
    result = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"--set is {pair!r}, but it must be key=value.")
        result[key.strip()] = value.strip()
    return result


def print_json(value: object) -> None:
    """Print strict JSON: NaN and Infinity are refused, control characters are escaped."""
    text = json.dumps(value, allow_nan=False, indent=2, ensure_ascii=False)
    print(printable_json(text))


def print_json_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a list of flat objects as `print_json` does, each as soon as it is there."""
    shown = "["
    for row in rows:
        # Python's own indentation is ten times slower than its encoder in C.
        text = json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(",\n    ", ": "))
        print(f"{shown}\n  {{\n    {printable_json(text[1:-1])}\n  }}", end="")
        shown = ","
    print("[]" if shown == "[" else "\n]")


def print_table(table: RenderableType) -> None:
    """Print tables or sentences on stdout."""
    from phaze_opt.report.layout import print_tables

    print_tables(table)


def print_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print plain rows that have the same keys, as JSON or as a table."""
    if as_json:
        print_json(rows)
        return
    from phaze_opt.report.tables import rows_table

    print_table(rows_table(rows))


def write_new_file(output: Path | None, name: str, text: str, *, force: bool) -> None:
    """Write a file to begin with, and say where it is.

    Parameters
    ----------
    output
        The file; ``None`` for one in the working directory, named after ``name``.
    name
        Of what is written.
    text
        Its content.
    force
        Whether it may replace another file.

    Raises
    ------
    ConflictError
        If there is such a file.
    InputError
        If its name does not end in .toml.
    PhazeError
        If it cannot be written.
    """
    from phaze_opt.user_files import write_file

    path = Path(f"{name}.toml") if output is None else output
    if path.suffix != ".toml":
        raise InputError(f"The file is {str(path)!r}, but its name must end in .toml.")
    check_outputs(path, force=force)
    write_file(path, text)
    say(f"{path} holds {name}.")


def check_outputs(*paths: Path | None, force: bool) -> None:
    """Make sure that files may be written, before the work whose results they shall hold.

    Parameters
    ----------
    paths
        As far as a command is given them.
    force
        Whether they may replace others.

    Raises
    ------
    PhazeError
        As `phaze_opt.user_files.check_writable`.
    """
    from phaze_opt.user_files import check_writable

    for path in paths:
        if path is not None:
            check_writable(path, force=force)


def warn_of_power(evaluations: Iterable[Evaluation | None]) -> None:
    """Warn on stderr of runs that take more power than the board of their chip may draw."""
    for evaluation in evaluations:
        if evaluation is not None and evaluation.is_above_tdp:
            from phaze_opt.report.words import power_warning

            say(power_warning(evaluation))


def say(sentence: str | None) -> None:
    """Print a note on stderr, if there is one, without the passwords of URLs."""
    if sentence is not None:
        print(printable(without_passwords(sentence)), file=sys.stderr)


def residency_choice(name: ResidencyName) -> ResidencyChoice:
    """Return what may stay on the chip as trainings and specs name it."""
    return name if name == "tiles" else name == "whole"

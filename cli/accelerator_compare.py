"""``phaze-opt accelerator compare``: two chips in their numbers, and in a run of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phaze_opt.choices import OptimizerName, Overlap
from phaze_opt.errors import InputError
from phaze_opt.units import format_number

from .output import (
    JsonOption,
    PresetArgument,
    ResidencyOption,
    print_json,
    print_rows,
    print_table,
    residency_choice,
    takes,
)

if TYPE_CHECKING:
    from phaze_opt.hardware.chip_file import AcceleratorPreset
    from phaze_opt.spec.axes import Scalar
    from phaze_opt.spec.study_spec import StudySpec
    from phaze_opt.study.baselines import BaselineRun

_SOLVE = "solve"
_MICROBATCHES: tuple[int, ...] = (1, 2, 4, 8)
_LARGE = 1e4
_OPTIONS = ("microbatch", "recompute", "zero", "attention")
"""Among which each chip has its best, where the run does not fix them."""


@dataclass(frozen=True)
class RunOptions:
    """The run that both chips do, as given."""

    model: Annotated[
        str | None,
        typer.Option(help="Also compare how fast they train this model.", show_default=False),
    ] = None
    cluster: Annotated[str, typer.Option(help="Network of both, with --model.")] = "dgx-h100"
    devices: Annotated[int, typer.Option(help="How many of each, with --model.")] = 64
    global_batch: Annotated[int, typer.Option(help="Samples per step, with --model.")] = 256
    microbatch: Annotated[
        str,
        typer.Option(
            metavar="solve|LIST",
            help="Samples at a time, each chip at its best: solve is 1,2,4,8.",
        ),
    ] = _SOLVE
    recompute: Annotated[
        str,
        typer.Option(
            metavar="solve|LIST", help="What runs again, each at its best: solve is none,full."
        ),
    ] = _SOLVE
    zero: Annotated[
        str,
        typer.Option(metavar="solve|LIST", help="ZeRO stage, each at its best: solve is 0,1."),
    ] = _SOLVE
    optimizer: Annotated[OptimizerName, typer.Option(help="With --model.")] = "adam"
    overlap: Annotated[
        Overlap, typer.Option(help="Communication beside compute, with --model.")
    ] = "data"
    sequence: Annotated[
        int | None, typer.Option(help="Tokens per sample, if not the model's own.")
    ] = None
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Split the sequence over tensor groups.")
    ] = False
    attention: Annotated[
        Literal["solve", "eager", "flash"] | None,
        typer.Option(
            help="Of the model, if not its own: solve is each chip at its best.", show_default=False
        ),
    ] = None
    residency: ResidencyOption = "whole"

    def spec(self) -> StudySpec:
        """State the run as a study does, whose baselines are at their best in the same way."""
        from phaze_opt.spec.space import Space
        from phaze_opt.spec.study_spec import StudySpec
        from phaze_opt.workload.zoo import microbatches

        assert self.model is not None
        held = microbatches(self.model) or _MICROBATCHES
        batches = [batch for batch in held if batch <= self.global_batch] or [1]
        solved: dict[str, Any] = {"zero": {_SOLVE: _chosen("zero", self.zero, [0, 1])}}
        if self.attention == _SOLVE:
            solved["attention"] = {_SOLVE: ["eager", "flash"]}
        space = Space(
            microbatch=_chosen("microbatch", self.microbatch, batches),
            recompute=_chosen("recompute", self.recompute, ["none", "full"]),
            **solved,
        )
        return StudySpec(
            name="compared",
            model=self.model,
            cluster=self.cluster,
            devices=self.devices,
            global_batch=self.global_batch,
            optimizer=self.optimizer,
            sequence=self.sequence,
            tensor_parallel="all",
            sequence_parallel=self.sequence_parallel,
            residency=residency_choice(self.residency),
            attention=None if self.attention == "solve" else self.attention,
            overlap=self.overlap,
            baselines=(),
            space=space,
        )

    def words(self, spec: StudySpec) -> str:
        """Say which run it is, and among which options each chip has its best."""
        stated = [
            f"{self.model} on {self.devices:,} devices, {self.cluster}",
            f"global batch {self.global_batch:,}",
            self.optimizer,
            f"overlap {self.overlap}",
            f"sequence {self.sequence or 'of the model'}",
            *(
                []
                if self.attention == _SOLVE
                else [f"attention {self.attention or 'of the model'}"]
            ),
            *(["sequence-parallel"] if self.sequence_parallel else []),
            *([] if spec.residency else ["nothing stays on the chip"]),
            *(["tensors stay by tiles too"] if spec.residency == "tiles" else []),
        ]
        among = [
            f"{name} {', '.join(map(str, spec.space.values_of(name)))}" for name in _searched(spec)
        ]
        return f"{', '.join(stated)}; each at its best placement, and of {'; '.join(among)}."


@takes(RunOptions)
def compare(
    options: RunOptions,
    first: PresetArgument,
    second: PresetArgument,
    as_json: JsonOption = False,
) -> None:
    """Show the numbers in which two accelerators differ, and the second over the first.

    With --model also what both achieve in one run, each at its best as a study's baselines are.

    Example: phaze-opt accelerator compare h100 mine.toml --model llama3-8b

    Example: phaze-opt accelerator compare tpuv4-lanes winner.toml --model bert-large --attention
    solve --cluster tpuv4-ici-flat --devices 1024 --global-batch 4096
    """
    from phaze_opt.hardware.presets import find_accelerator
    from phaze_opt.report.tables import accelerator_numbers

    names = ("first", "second") if first == second else (first, second)
    presets = find_accelerator(first), find_accelerator(second)
    chips = presets[0].accelerator, presets[1].accelerator
    numbers, other = (accelerator_numbers(chip) for chip in chips)
    rows = [
        _row(name, names, (numbers[name], other[name]))
        for name in numbers
        if numbers[name] != other[name]
    ]
    words = ""
    if options.model is not None:
        from phaze_opt.study.baselines import train_at_best

        spec = options.spec()
        words = options.words(spec) + _silicon_words(names, presets)
        searched = _searched(spec)
        numbers, other = (_achieved(run, searched) for run in train_at_best(spec, chips))
        rows += [_row(name, names, (numbers[name], other[name])) for name in numbers]
    if as_json:
        said = [{"field": "run", **dict.fromkeys(names, words), "ratio": None}] if words else []
        print_json([*said, *rows])
        return
    if words:
        from phaze_opt.report.layout import sentence

        print_table(sentence(words))
    print_rows([_in_units(row, names) for row in rows] or [{"difference": "none"}], as_json)


def _silicon_words(
    names: tuple[str, str], presets: tuple[AcceleratorPreset, AcceleratorPreset]
) -> str:
    """Say that devices are compared one by one, where the area of one of them is not known.

    A device may be a die or a whole wafer.
    """
    unknown = [
        name
        for name, preset in zip(names, presets, strict=True)
        if preset.accelerator.area_mm2 is None
    ]
    if not unknown:
        return ""
    devices = "; ".join(preset.description or preset.name for preset in presets)
    return (
        f" As many devices of each, however much silicon one is (no area is known of "
        f"{' and '.join(unknown)}): {devices}."
    )


def _chosen(name: str, given: str, solved: Sequence[Scalar]) -> list[Scalar]:
    """Read the values among which each chip has its best.

    Raises
    ------
    InputError
        If a value is no whole number where the others are numbers.
    """
    if given == _SOLVE:
        return list(solved)
    parts = [part.strip() for part in given.split(",")]
    if isinstance(solved[0], str):
        return list(parts)
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(
            f"--{name} is {given!r}, but it must be solve or whole numbers with commas, as in "
            f"{','.join(map(str, solved))}."
        )
    return [int(part) for part in parts]


def _searched(spec: StudySpec) -> list[str]:
    """Return the options among which each chip has its best."""
    return [name for name in _OPTIONS if name in spec.space.axes]


def _achieved(
    run: BaselineRun | None, searched: Sequence[str]
) -> dict[str, int | float | str | bool | None]:
    """Return what a chip achieves at its best, by name, and the options that it has then."""
    from phaze_opt.report.words import RESOURCE_WORDS

    evaluation = None if run is None else run.evaluation
    if run is None or evaluation is None or evaluation.placement is None:
        rates = ("throughput, samples/s", "tokens/s per device", "TFLOP/s per device", "MFU")
        nothing = dict.fromkeys((*searched, "placement"))
        unbound = {"bound by": "fits under no option", "bound by, share": None}
        return {**dict.fromkeys(rates, 0.0), **unbound, **nothing}
    resource, share = next(iter(evaluation.bound_by_share.items()))
    return {
        "throughput, samples/s": evaluation.throughput_samples_per_s,
        "tokens/s per device": evaluation.tokens_per_s_per_device,
        "TFLOP/s per device": evaluation.tflops_per_device,
        "MFU": evaluation.mfu,
        "bound by": RESOURCE_WORDS.get(resource, resource),
        "bound by, share": share,
        **{name: run.values[name] for name in searched},
        "placement": evaluation.placement.degrees_text,
    }


def _row(name: str, names: tuple[str, str], values: tuple[Any, Any]) -> dict[str, Any]:
    """Return a number of both chips, and the second over the first."""
    ratio = None if name in _OPTIONS else _ratio(*values)
    return {"field": name, **dict(zip(names, values, strict=True)), "ratio": ratio}


def _ratio(first: object, second: object) -> float | None:
    """Return the second over the first, where both are numbers."""
    if isinstance(first, bool) or isinstance(second, bool):
        return None
    if isinstance(first, int | float) and isinstance(second, int | float) and first:
        return second / first
    return None


def _in_units(row: Mapping[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """Return a row of the comparison in the units in which files state the number."""
    from phaze_opt.report.tables import named_in_units

    shown = [named_in_units(row["field"], row[name]) for name in names]
    known = {field for (field, _), name in zip(shown, names, strict=True) if row[name] is not None}
    # One of both may not have the number; both have it in the same unit, or as it is.
    field = known.pop() if len(known) == 1 else row["field"]
    values = (
        [row[name] for name in names] if field == row["field"] else [value for _, value in shown]
    )
    return {
        "field": field,
        **dict(zip(names, map(_without_powers, values), strict=True)),
        "ratio": _ratio_words(row["ratio"]),
    }


def _without_powers(value: object) -> object:
    """Write a large number whole, which tables write as a power of ten."""
    return format_number(value) if isinstance(value, float) and value >= _LARGE else value


def _ratio_words(ratio: float | None) -> str:
    """Write a ratio, or nothing."""
    return "" if ratio is None else f"{ratio:.3g}×"

"""The highest utilisation that published training runs reached, by class of models and bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, cast

from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.placed_figures import peak_flops_per_s
from phaze_opt.precision import PRECISIONS, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

ModelClass = Literal["dense", "experts"]


@dataclass(frozen=True)
class MeasuredRun:
    """The highest utilisation that was measured of a class of models and a number of bits."""

    models: ModelClass
    element: str
    mfu: float
    case: str
    source: str


@dataclass(frozen=True)
class MeasuredRuns:
    """Of every class that was measured."""

    runs: tuple[MeasuredRun, ...]


def measured_runs(rows: Iterable[Mapping[str, str]]) -> MeasuredRuns:
    """Find the highest model FLOP utilisation of every class among published training runs.

    FLOPs are counted as those of a design are: without recompute, and without what causal masks
    hide.

    Parameters
    ----------
    rows
        Of the files of measured runs; adapters and what is hardly to be trusted are left out.
    """
    best: dict[tuple[str, str], MeasuredRun] = {}
    for row in rows:
        if not row["measured_s"] or row.get("lora_rank") or row["trust"] == "low":
            continue
        run = _measured_run(row)
        known = best.get((run.models, run.element))
        if known is None or run.mfu > known.mfu:
            best[run.models, run.element] = run
    return MeasuredRuns(tuple(best.values()))


def _measured_run(row: Mapping[str, str]) -> MeasuredRun:
    """Return what a published run reached."""
    stated = row["precision"]
    precision = cast(PrecisionName, "bf16" if stated in ("16-bit", "fp16") else stated)
    # Masks hide nothing in an eager core.
    workload = load_workload(row["model"], attention="flash")
    degrees = ("pipeline", "data", "tensor", "context_parallel")
    devices = prod(int(row.get(degree) or 1) for degree in degrees)
    batch, chip = int(row["global_batch"]), load_accelerator(row["accelerator"])
    peak = devices * peak_flops_per_s(chip, Training(batch, precision=precision))
    variant = workload.variants[0]
    flops = variant.training_flops * (1.0 - variant.masked_flops_share) * batch
    return MeasuredRun(
        models=class_of(workload),
        element=PRECISIONS[precision].element,
        mfu=flops / (float(row["measured_s"]) * peak),
        case=f"{row['case']} on {row['accelerator']}",
        source=row["source"],
    )


def class_of(workload: Workload) -> ModelClass:
    """Say whether a model has routed experts."""
    layers = workload.variants[0].layers
    return "experts" if any(layer.routed_parameters for layer in layers) else "dense"

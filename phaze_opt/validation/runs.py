"""Predicted against measured training runs: time per batch, and memory of the fullest device.

A run is evaluated as it was: the same model, degrees, batch and recompute, and else as its software
runs by default, where the source states nothing else (`phaze_opt.software`). A source that
does not state the microbatch or the chunks of an interleaved pipeline leaves several; the fastest
that fit are taken, and the row says which. A run that fitted its devices but not the predicted
memory is evaluated as if they held it; the row says that too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, cast

from phaze_opt.choices import (
    ContextKind,
    Dispatcher,
    OptimizerName,
    Overlap,
    Recompute,
    SoftwareName,
)
from phaze_opt.codec import data_rows
from phaze_opt.degrees import Degrees
from phaze_opt.evaluation import Evaluation, place_point
from phaze_opt.explanation.binding import bind_pass
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.scheduled import ScheduledLayer
from phaze_opt.point import CostedPoint, Point, cost_point
from phaze_opt.precision import PRECISIONS, PrecisionName
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.software import SOFTWARE, Software
from phaze_opt.training import Training
from phaze_opt.units import format_bytes
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.validation.reserved import kept_bytes
from phaze_opt.workload.zoo import load_workload

_FILES = (
    *("training.csv", "training_experts.csv", "training_context.csv"),
    "training_adapters.csv",
)
_MEASURED = ("measured_s", "measured_memory_bytes")
_NOT_OPTIONS = ("table", "case", "trust", "repeats", "source", *_MEASURED)
"""Columns that say something of the measurement, not of how the model ran."""
_SEVERAL = {"microbatch": "microbatches", "interleave": "interleave"}
"""Options that a source may leave open, and the column that lists their values."""
_ROOMY_BYTES = 2.0**50
"""Memory that holds every published run on one device."""


@dataclass(frozen=True)
class _Run:
    """A run as it was evaluated: its point, what came out, and which options were assumed."""

    software: Software
    costed: CostedPoint
    evaluation: Evaluation
    assumed: str

    @property
    def time_s(self) -> float:
        """Time per batch of a run that fits."""
        assert self.evaluation.time_per_batch_s is not None
        return self.evaluation.time_per_batch_s

    @property
    def bound(self) -> Literal["host", "device"]:
        """Whether the host takes longer to launch the kernels of all layers than they take."""
        assert self.evaluation.placement is not None
        cost = self.costed.costs[self.evaluation.placement.tensor]
        host_s, device_s = 0.0, 0.0
        for layer, own in zip(cost.layers, cost.passes, strict=True):
            for name in filter(None, ("forward", "backward", own.again)):
                host_s += layer.count * layer.host_s.get(name, 0.0)
                device_s += layer.count * own.passes[name].schedule.makespan_s
        return "host" if host_s > device_s else "device"

    @property
    def memory_bytes(self) -> float:
        """What the fullest device of a run that fits holds."""
        assert self.evaluation.placement is not None
        stages = self.evaluation.placement.stages
        return float(max(stage.memory_bytes.total for stage in stages))

    @property
    def reserved_bytes(self) -> float:
        """What it has of the device's memory, with what the allocator of its framework keeps."""
        assert self.evaluation.placement is not None
        if not self.software.keeps_freed_memory:
            return self.memory_bytes
        variant = self.costed.costs[self.evaluation.placement.tensor].variant
        return self.memory_bytes + kept_bytes(variant, self.software.launch)

    @property
    def parts_s(self) -> dict[str, float]:
        """Time per batch by kind, exposed communication of the layers apart from the compute."""
        placement = self.evaluation.placement
        assert placement is not None
        cost = self.costed.costs[placement.tensor]
        distinct = dict(cost.variant.nodes)
        busiest = max(placement.stages, key=lambda stage: stage.load_s)
        held = [distinct[name] for name in busiest.layers]
        parts_s = dict(placement.time_breakdown_s)
        parts_s["tensor_collectives"] = 0.0
        for exchanges in (False, True):
            name = "token_exchanges" if exchanges else "tensor_collectives"
            for kind in ("forward", "backward", "recompute"):
                once_s = [self._communication_s(own, kind, exchanges) for own in cost.passes]
                sent_s = placement.microbatches * sum(once_s[index] for index in held)
                if sent_s > 0.0:
                    parts_s[kind] -= sent_s
                    parts_s[name] = parts_s.get(name, 0.0) + sent_s
        return parts_s

    def _communication_s(self, passes: ScheduledLayer, kind: str, exchanges: bool) -> float:
        """Exposed communication of one pass of a layer; see `PassBinding.communication_s`."""
        scheduled = getattr(passes, kind)
        return (
            0.0
            if scheduled is None
            else bind_pass(scheduled, self.costed.point.accelerator).communication_s(exchanges)
        )


def validate_run_times() -> list[ValidationTable]:
    """Predict the time per batch of every measured training run.

    Returns
    -------
    tables
        One per publication and accelerator, in the order of the data.
    """
    return _tables("measured_s", "", "s", lambda run: run.time_s)


def validate_run_memory() -> list[ValidationTable]:
    """Predict what the fullest device holds in runs that publish it, as their framework counts."""
    return _tables("measured_memory_bytes", " memory", "B", lambda run: run.reserved_bytes)


def _tables(
    column: str, suffix: str, unit: Literal["s", "B"], predicted: Callable[[_Run], float]
) -> list[ValidationTable]:
    """Evaluate the runs for which a column holds a measured value."""
    grouped: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in itertools.chain.from_iterable(data_rows("validation", name) for name in _FILES):
        if row[column]:
            shared = ", sequences shared" if "context_parallel" in row else ""
            grouped.setdefault((row["table"] + shared, row["accelerator"]), []).append(row)
    tables = []
    for (name, accelerator), members in grouped.items():
        rows = []
        for row in members:
            run = _run({key: value for key, value in row.items() if key not in _NOT_OPTIONS})
            rows.append(
                ValidationRow(
                    case=row["case"],
                    measured=float(row[column]),
                    predicted=predicted(run),
                    assumed=run.assumed,
                    trust=row["trust"],
                    source=row["source"],
                    repeats=row["repeats"],
                    parts_s=run.parts_s if unit == "s" else {},
                    bound=run.bound if unit == "s" else "",
                )
            )
        source = members[0]["source"]
        tables.append(ValidationTable(name + suffix, accelerator, 0.0, source, tuple(rows), unit))
    return tables


def _run(options: dict[str, str]) -> _Run:
    """Evaluate one measured run at the fastest of the options that its source leaves open."""
    return _evaluated(tuple(options.items()))


@functools.cache
def _evaluated(items: tuple[tuple[str, str], ...]) -> _Run:
    """Evaluate a run once, for its time and for its memory."""
    options = dict(items)
    tried = list(_as_it_may_have_run(options))
    assumed = []
    if not any(evaluation.feasible for _, evaluation in tried):
        roomy = [_as_if_it_fitted(_software(options), costed) for costed, _ in tried]
        tried = [pair for pair, _ in roomy]
        assumed.append(min(words for _, words in roomy))
    fitting = [(costed, evaluation) for costed, evaluation in tried if evaluation.feasible]
    costed, evaluation = min(fitting, key=lambda pair: pair[1].time_per_batch_s or 0.0)
    assumed += [
        f"{name} {getattr(costed.point.training, name)}"
        for name, column in _SEVERAL.items()
        if len(options[column].split()) > 1
    ]
    return _Run(_software(options), costed, evaluation, ", ".join(assumed))


def _software(options: dict[str, str]) -> Software:
    """Return the software of a run."""
    return SOFTWARE[cast(SoftwareName, options["software"])]


def _fuses_accumulation(options: dict[str, str], software: Software) -> bool:
    """Return whether products added gradients up: as stated, or as the software does."""
    stated = options.get("fused_accumulation")
    return stated == "true" if stated else software.fused_accumulation


def _recipe(stated: str) -> PrecisionName:
    """Return in what linear layers multiplied: a recipe, or 16 bits of either kind."""
    return cast(PrecisionName, stated) if stated in PRECISIONS else "bf16"


def _as_if_it_fitted(
    software: Software, costed: CostedPoint
) -> tuple[tuple[CostedPoint, Evaluation], str]:
    """Evaluate a run on devices that hold it, and say how much more that is than they have."""
    problem = costed.problem
    roomy = replace(costed, problem=replace(problem, hbm_usable_bytes=_ROOMY_BYTES))
    run = _Run(software, roomy, place_point(roomy), "")
    needed, held = format_bytes(run.memory_bytes), format_bytes(problem.hbm_usable_bytes)
    return (roomy, run.evaluation), f"that {needed} fit the {held} of a device"


def _as_it_may_have_run(options: dict[str, str]) -> Iterator[tuple[CostedPoint, Evaluation]]:
    """Evaluate one measured run at every microbatch and interleaving that it may have had."""
    context = int(options.get("context_parallel") or 1)
    three = (int(options[axis]) for axis in ("pipeline", "data", "tensor"))
    degrees = Degrees(*three)._replace(context=context)
    microbatches = tuple(int(size) for size in options["microbatches"].split())
    sequence_parallel = options["sequence_parallel"] == "true"
    preset = find_accelerator(options["accelerator"])
    software, precision = _software(options), _recipe(options["precision"])
    chip = with_kernel(preset, software.attention_kernel).accelerator
    cluster = load_cluster(options["cluster"], degrees.devices)
    workload = load_workload(
        options["model"],
        tensor_parallel=(degrees.tensor,),
        microbatch=microbatches,
        sequence_parallel=sequence_parallel,
        context_parallel=(context,),
        lora_rank=int(options.get("lora_rank") or 0),
        lora_targets=(options.get("lora_targets") or "").split(),
    )
    schedules: dict[str, Schedule] = {}
    chunks = (int(count) for count in options["interleave"].split())
    for interleave, microbatch in itertools.product(chunks, microbatches):
        training = Training(
            global_batch=int(options["global_batch"]),
            microbatch=microbatch,
            recompute=cast(Recompute, options["recompute"]),
            recompute_parts=options.get("recompute_parts", ""),
            optimizer=cast(OptimizerName, options["optimizer"] or software.optimizer),
            sequence_parallel=sequence_parallel,
            zero=int(options["zero"]),
            pipeline_schedule="interleaved" if interleave > 1 else "1f1b",
            interleave=interleave,
            overlap=cast(Overlap, options["overlap"] or software.overlap),
            gather_copies=software.gather_copies,
            launch=software.launch,
            gradient_dtype=software.gradient_dtype,
            expert_parallel=int(options.get("expert_parallel") or 1),
            dispatcher=cast(Dispatcher, options.get("dispatcher") or "nccl"),
            accumulation_dtype=software.accumulation_dtype,
            fused_accumulation=_fuses_accumulation(options, software),
            precision=precision,
            **software.fp8_weights(precision),
            context_parallel=context,
            context_kind=cast(ContextKind, options.get("context_kind") or "ring"),
        )
        point = Point(workload, chip, cluster, training, degrees, software.fusion)
        costed = cost_point(point, schedules)
        yield costed, place_point(costed)

"""A training run as text states it, evaluated: rows of measured runs, built in or of a user.

A run is a row of text by column: the model, chip and network by name, the degrees of parallelism,
the fields of `phaze_opt.training.Training`, and the software, whose options hold where a column is
empty or absent (`phaze_opt.software`). Some options may be left open: their columns list several
values, and the fastest that fit are taken. A run that fitted its devices but not the predicted
memory is evaluated as if they held it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, cast, get_type_hints

from phaze_opt.choices import FusionMode, SoftwareName
from phaze_opt.codec import from_text
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.evaluation import Evaluation, place_point, with_range
from phaze_opt.explanation.binding import bind_pass
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.scheduled import ScheduledLayer
from phaze_opt.point import CostedPoint, Point, cost_point
from phaze_opt.precision import PrecisionName
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.software import SOFTWARE, Software
from phaze_opt.training import Training
from phaze_opt.units import format_bytes
from phaze_opt.validation.measured import OPEN_COLUMNS
from phaze_opt.validation.reserved import kept_bytes
from phaze_opt.workload.zoo import load_workload

_SIXTEEN_BITS = ("16-bit", "fp16", "bf16")
_ROOMY_BYTES = 2**50
"""Memory that holds every run on one device."""


class TriedRun(NamedTuple):
    """A run with one choice of the options that it leaves open.

    Attributes
    ----------
    choice
        In words; empty where nothing is open.
    costed, evaluation
        Its point, and what came out.
    """

    choice: str
    costed: CostedPoint
    evaluation: Evaluation

    @property
    def range_s(self) -> tuple[float, float]:
        """Times per batch of the fastest and the slowest chips of the name."""
        evaluation = with_range(self.costed.point, self.evaluation)
        central_s = evaluation.time_per_batch_s
        assert central_s is not None
        return evaluation.time_per_batch_range_s or (central_s, central_s)


@dataclass(frozen=True)
class EvaluatedRun:
    """A run as it was evaluated.

    Attributes
    ----------
    software
        What it ran with.
    tried
        With all choices of the options that it leaves open that fit, the fastest first.
    misfit
        How much more memory it needs than a device has, in words; empty where it fits.
    """

    software: Software
    tried: tuple[TriedRun, ...]
    misfit: str = ""

    @property
    def costed(self) -> CostedPoint:
        """The point of the fastest."""
        return self.tried[0].costed

    @property
    def evaluation(self) -> Evaluation:
        """What came out for the fastest."""
        return self.tried[0].evaluation

    @property
    def assumed(self) -> str:
        """What is assumed beyond what the run states, in words; empty where nothing is."""
        return ", ".join(filter(None, (self.misfit, self.tried[0].choice)))

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
    def range_s(self) -> tuple[float, float]:
        """Least and most time of all that is left open, on all chips of the name."""
        spans_s = [tried.range_s for tried in self.tried]
        return min(low_s for low_s, _ in spans_s), max(high_s for _, high_s in spans_s)

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


def evaluate_stated_run(options: Mapping[str, str]) -> EvaluatedRun:
    """Evaluate a run with every choice of the options that it leaves open.

    Parameters
    ----------
    options
        Text by column; empty where nothing is stated. ``model``, ``accelerator``, ``cluster``,
        ``pipeline``, ``data``, ``tensor``, ``global_batch`` and ``software`` or ``optimizer`` are
        needed; then there are the fields of `phaze_opt.training.Training`, the columns of
        `OPEN_COLUMNS`, ``sequence``, ``lora_rank``, ``lora_targets``, ``attention_kernel`` and
        ``fusion``.

    Raises
    ------
    InputError
        If a value is not allowed, what is needed is not there, or no device of any memory could run
        it so.
    NotFoundError
        If there is no such file.
    """
    options = {column: text for column, text in options.items() if text}
    software = _software(options)
    tried, misfit = list(_as_it_may_have_run(options, software)), ""
    fitting = [each for each in tried if each.evaluation.feasible]
    if not fitting:
        too_large = [each for each in tried if each.evaluation.misfit is not None]
        if not too_large:
            raise InputError(tried[0].evaluation.reason or "No placement fits.")
        roomy = [_as_if_it_fitted(software, each) for each in too_large]
        fitting = [each for each, _ in roomy]
        misfit = min(words for _, words in roomy)
    fitting.sort(key=lambda each: each.evaluation.time_per_batch_s or 0.0)
    return EvaluatedRun(software, tuple(fitting), misfit)


def _software(options: Mapping[str, str]) -> Software:
    """Return the software of a run; where it has no name, the options that the run states."""
    name = options.get("software")
    if name is None:
        if "optimizer" not in options:
            raise InputError("software and optimizer are empty, but one of them must be stated.")
        return Software("adam", "data", "graphs")
    if name not in SOFTWARE:
        raise unknown_name("software", name, SOFTWARE)
    return SOFTWARE[cast(SoftwareName, name)]


def _recipe(stated: str) -> PrecisionName:
    """Return in what linear layers multiplied: a recipe, or 16 bits of any kind."""
    if stated in _SIXTEEN_BITS:
        return "bf16"
    return cast(PrecisionName, from_text(stated, PrecisionName, "precision"))


def _as_if_it_fitted(software: Software, tried: TriedRun) -> tuple[TriedRun, str]:
    """Evaluate a run on devices that hold it, and say how much more that is than they have."""
    problem = tried.costed.problem
    point = tried.costed.point
    # What looks for the range of the time evaluates the point again.
    chip = point.accelerator.with_memory_bytes(_ROOMY_BYTES)
    roomy = replace(
        tried.costed,
        point=replace(point, accelerator=chip),
        problem=replace(problem, hbm_usable_bytes=float(_ROOMY_BYTES)),
    )
    held = TriedRun(tried.choice, roomy, place_point(roomy))
    needed_bytes = EvaluatedRun(software, (held,)).memory_bytes
    needed, usable = format_bytes(needed_bytes), format_bytes(problem.hbm_usable_bytes)
    return held, f"that {needed} fit the {usable} of a device"


def _as_it_may_have_run(options: Mapping[str, str], software: Software) -> Iterator[TriedRun]:
    """Evaluate a run with every choice of what it leaves open."""
    precision = _recipe(options.get("precision", "bf16"))
    stated = {
        field: from_text(options[field], kind, field)
        for field, kind in _fields_of_training().items()
        if field in options and field not in ("precision", *OPEN_COLUMNS)
    }
    values = {**software.training_options(precision), "precision": precision, **stated}
    context = values.get("context_parallel", 1)
    three = (from_text(options[axis], int, axis) for axis in ("pipeline", "data", "tensor"))
    degrees = Degrees(*three)._replace(context=context)
    choices = {
        field: [from_text(text, _fields_of_training()[field], field) for text in texts]
        for field, column in OPEN_COLUMNS.items()
        if (texts := options.get(column, "").split())
    }
    preset = find_accelerator(options["accelerator"])
    kernel = options.get("attention_kernel") or software.attention_kernel
    chip = with_kernel(preset, kernel).accelerator
    cluster = load_cluster(options["cluster"], degrees.devices)
    workload = load_workload(
        options["model"],
        tensor_parallel=(degrees.tensor,),
        microbatch=tuple(choices.get("microbatch", (1,))),
        sequence_parallel=values.get("sequence_parallel", False),
        context_parallel=(context,),
        expert_tensor_parallel=(values.get("expert_tensor_parallel", 0),),
        expert_capacity=(values.get("expert_capacity", 0.0),),
        sequence=from_text(options["sequence"], int, "sequence") if "sequence" in options else None,
        lora_rank=from_text(options.get("lora_rank", "0"), int, "lora_rank"),
        lora_targets=options.get("lora_targets", "").replace(",", " ").split(),
    )
    fusion = software.fusion
    if "fusion" in options:
        fusion = from_text(options["fusion"], FusionMode, "fusion")
    schedules: dict[str, Schedule] = {}
    for chosen in itertools.product(*choices.values()):
        own = dict(zip(choices, chosen, strict=True))
        if own.get("interleave", 1) > 1:
            own["pipeline_schedule"] = "interleaved"
        training = Training(**{**values, **own})
        point = Point(workload, chip, cluster, training, degrees, fusion)
        costed = cost_point(point, schedules)
        words = ", ".join(f"{field} {own[field]}" for field in choices if len(choices[field]) > 1)
        yield TriedRun(words, costed, place_point(costed))


@functools.cache
def _fields_of_training() -> dict[str, Any]:
    """Return the types of the options of a training run by name."""
    hints = get_type_hints(Training)
    return {field.name: hints[field.name] for field in fields(Training)}

"""A study as a person writes it: in a TOML file, or in Python.

Everything is checked here, at the edge: for a mistyped key the error names the nearest valid key,
and a value of a wrong type or outside its range is refused before anything is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from phaze_opt.choices import (
    AreaModel,
    AttentionKind,
    ContextKind,
    Dispatcher,
    DispatchPrecision,
    GradientDtype,
    Launch,
    OptimizerName,
    Overlap,
    PipelineScheduleName,
    RankOrderChoice,
    Recompute,
    ResidencyChoice,
)
from phaze_opt.codec import convert_fields, from_builtins, read_toml_file
from phaze_opt.economics.choices import Economics
from phaze_opt.errors import InputError
from phaze_opt.limits import MOST_DEVICES, MOST_SAMPLES, MOST_TRIALS, check_size
from phaze_opt.precision import AttentionPrecision, Fp8Scaling, PrecisionName
from phaze_opt.printing import short_repr
from phaze_opt.spec.axis_names import TRAINING_NAMES, kind_of
from phaze_opt.spec.designs import training_of
from phaze_opt.spec.objectives import (
    BOUNDED_OBJECTIVES,
    OBJECTIVES,
    PAID_OBJECTIVES,
    Aggregate,
    ObjectiveKind,
    ObjectiveName,
)
from phaze_opt.spec.sampler_options import SamplerName, check_objectives, sampler_options
from phaze_opt.spec.space import MOST_CHIPS, Space
from phaze_opt.workload.trained import Trained, trained_parts

TensorDegrees = tuple[int, ...] | Literal["all"]
"""Tensor-parallel degrees; ``"all"`` for those among 1, 2, 4 and 8 that divide the model."""

PlacementChoice = Literal["solve", "expert"]
"""The placement of every design."""


@dataclass(frozen=True, repr=False)
class AreaSpec:
    """The limits of the chip area; by default the largest is the area of the base.

    Attributes
    ----------
    max_of
        Preset, or TOML file, whose area is the limit.
    max_mm2
        The limit itself.
    min_share
        Least share of the limit that a chip with several cores of each kind must have; the paper
        uses 0.3.
    model
        Area model.
    links
        Whether the PHYs of the links of the network take area of the chip, and of the limit where
        it is that of a chip, see `phaze_opt.hardware.area.link_area_mm2`.
    """

    max_of: str | None = None
    max_mm2: float | None = None
    min_share: float = 0.0
    model: AreaModel = "phaze-22nm"
    links: bool = False

    def __post_init__(self) -> None:
        convert_fields(self, "area")
        if self.max_mm2 is not None and not 0 < self.max_mm2 < math.inf:
            raise InputError(f"max_mm2 is {self.max_mm2}, but it must be positive.")
        if not 0 <= self.min_share < 1:
            raise InputError(f"min_share is {self.min_share}, but it must be in [0, 1).")
        if self.links and self.model == "phaze-22nm":
            raise InputError(
                'links is true, but the area model phaze-22nm has no links; write model = "chip".'
            )
        if self.links and self.min_share > 0:
            raise InputError(
                f"links is true and min_share is {self.min_share}, but a least area is known of "
                "chips without links only; leave one out."
            )

    __repr__ = short_repr


_PAID_LIMITS = ("max_power_w_rack", "max_cost_usd", "max_carbon_kg")
"""Limits that follow from the power of a run, as ``max_power_w`` does."""


@dataclass(frozen=True, repr=False)
class ConstraintSpec:
    """The limits of a feasible design besides area and memory; ``None`` for no limit.

    Attributes
    ----------
    max_power_w
        Limit of the average dynamic power of a device in use, in watts.
    max_hbm_gib
        Limit of the HBM of a chip, in GiB.
    max_devices
        Limit of the number of devices in use.
    max_time_per_batch_s
        Limit of the time per batch of every workload, in seconds.
    max_power_w_rack
        Limit of the average power of a rack at the wall (``devices_per_rack`` of `economics`).
    max_cost_usd, max_carbon_kg
        Limits of what the cluster costs, in US dollars, and emits, in kilograms of CO2 equivalent,
        to be made and over its lifetime.
    min_memory_margin
        Share of the usable HBM that the placement leaves free on every stage.
    """

    max_power_w: float | None = None
    max_hbm_gib: float | None = None
    max_devices: int | None = None
    max_time_per_batch_s: float | None = None
    max_power_w_rack: float | None = None
    max_cost_usd: float | None = None
    max_carbon_kg: float | None = None
    min_memory_margin: float = 0.0

    def __post_init__(self) -> None:
        convert_fields(self, "constraints")
        names = "max_power_w", "max_hbm_gib", "max_devices", "max_time_per_batch_s", *_PAID_LIMITS
        for name in names:
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise InputError(f"{name} is {limit}, but it must be positive.")
        if not 0 <= self.min_memory_margin < 1:
            raise InputError(
                f"min_memory_margin is {self.min_memory_margin}, but it must be in [0, 1)."
            )

    __repr__ = short_repr

    @property
    def is_paid(self) -> bool:
        """Whether a limit is of dollars, of carbon or of watts at the wall."""
        return any(getattr(self, name) is not None for name in _PAID_LIMITS)

    @property
    def limits_power(self) -> bool:
        """Whether a limit follows from the average power of a run."""
        return self.max_power_w is not None or self.is_paid


@dataclass(frozen=True, repr=False)
class SearchSpec:
    """The search of the space.

    Attributes
    ----------
    sampler
        See `phaze_opt.study.samplers.by_name.Samplers`; ``None`` for `default_sampler`.
    trials
        Number of complete trials of the study, unless a run asks for another number.
    seed
        Seed of the sampler.
    options
        Options of the sampler, by the names of `phaze_opt.spec.sampler_options`.
    """

    sampler: SamplerName | None = None
    trials: int = 60
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_fields(self, "search")
        if self.sampler is not None:
            sampler_options(self.sampler, self.options)
        elif self.options:
            raise InputError("options are given, but no sampler; name the one that they belong to.")
        check_size("trials", self.trials, MOST_TRIALS)
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}, but it must be between 0 and 2^32 - 1.")

    __repr__ = short_repr


@dataclass(frozen=True, repr=False)
class WorkloadSpec:
    """One of several workloads of a study; keys that it does not state come from the study.

    Attributes
    ----------
    model, sequence, attention, tensor_parallel, global_batch
        See `StudySpec`.
    name
        Name in tables; by default the model.
    weight
        Weight in the mean over the workloads.
    """

    model: str
    name: str = ""
    sequence: int | None = None
    attention: AttentionKind | None = None
    tensor_parallel: TensorDegrees | None = None
    global_batch: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        convert_fields(self, "workload")
        if not 0 < self.weight < math.inf:
            raise InputError(f"weight is {self.weight}, but it must be positive.")
        if self.global_batch is not None:
            check_size("global_batch", self.global_batch, MOST_SAMPLES)
        _check_degrees(self.tensor_parallel)
        if not self.name:
            object.__setattr__(self, "name", self.model)

    def __repr__(self) -> str:
        return short_repr(self, {"name"} if self.name == self.model else ())


@dataclass(frozen=True, repr=False)
class StudySpec:
    """One study; in Python ``StudySpec("mine", "bert-large", "tpuv4-ici-flat", 64, 256)``.

    Attributes
    ----------
    name
        Of the study.
    model, sequence, attention, tensor_parallel
        Workload, its tokens per sample and its attention (``None`` for the model's own), and the
        tensor-parallel degrees that the placement may choose.
    frozen, lora_rank, lora_targets
        What of all models is not trained, or the adapters that are trained instead, see
        `phaze_opt.workload.trained.Trained`.
    cluster, devices
        Network preset, or file, and the number of accelerators.
    global_batch
        Samples per optimizer step on all devices.
    optimizer, sequence_parallel, residency, microbatch, recompute, zero, pipeline_schedule, \
    interleave, overlap, fused_optimizer, recompute_early_stop, gather_copies, launch, \
    gradient_dtype, expert_parallel, dispatcher, expert_imbalance, precision, \
    fp8_primary_weights, fp8_param_gather, \
    attention_precision, accumulation_dtype, context_parallel, context_kind, recompute_parts, \
    fused_accumulation, expert_tensor_parallel, expert_capacity, dispatch_precision, \
    bf16_layers_at_start, bf16_layers_at_end, fp8_scaling, fp8_transposes, offload_parts, \
    offload_share, offload_optimizer, linear_precisions, rank_order
        Options of the training run, as in `phaze_opt.training.Training`, unless they are axes of
        the space. An interleave above 1 implies the interleaved pipeline schedule.
    workloads
        Several workloads, instead of ``model``.
    aggregate, relative_to
        The mean that joins the values of several workloads, each relative to its value on a
        baseline, by default the first.
    placement
        ``"solve"`` for the fastest placement, or ``"expert"`` for the degrees that people use for
        the model; for every design and baseline.
    baselines
        Presets or TOML files to compare with, each at its best over the training options of the
        space and over the placement, with its own HBM.
    space
        The searched axes; ``"phaze"`` for the space of the paper.
    area, constraints
        Limits of the chip area, and other limits of a feasible design.
    objectives
        The objectives; several make a Pareto study.
    economics
        Grid, prices, lifetime, margin and volume, for objectives and limits of dollars, watts and
        carbon.
    search
        Sampler, number of trials and seed.
    """

    name: str
    model: str | None = None
    cluster: str = ""
    devices: int = 0
    global_batch: int = 0
    optimizer: OptimizerName = "sgd"
    sequence: int | None = None
    tensor_parallel: TensorDegrees = (1,)
    sequence_parallel: bool = False
    residency: ResidencyChoice = True
    baselines: tuple[str, ...] = ("tpuv4-phaze", "tpuv4-lanes")
    space: Space = field(default_factory=Space.phaze)
    area: AreaSpec = field(default_factory=AreaSpec)
    search: SearchSpec = field(default_factory=SearchSpec)
    constraints: ConstraintSpec = field(default_factory=ConstraintSpec)
    objectives: tuple[ObjectiveName, ...] = ("throughput",)
    workloads: tuple[WorkloadSpec, ...] = ()
    aggregate: Aggregate = "geometric-mean"
    relative_to: str | None = None
    attention: AttentionKind | None = None
    microbatch: int = 1
    recompute: Recompute = "none"
    zero: int = 0
    pipeline_schedule: PipelineScheduleName | None = None
    interleave: int = 1
    overlap: Overlap = "data"
    fused_optimizer: bool = True
    recompute_early_stop: bool = False
    gather_copies: bool = False
    launch: Launch = "graphs"
    gradient_dtype: GradientDtype | None = None
    expert_parallel: int = 1
    dispatcher: Dispatcher = "nccl"
    expert_imbalance: float = 1.0
    precision: PrecisionName = "bf16"
    fp8_primary_weights: bool = False
    fp8_param_gather: bool = False
    attention_precision: AttentionPrecision = "bf16"
    accumulation_dtype: GradientDtype | None = None
    context_parallel: int = 1
    context_kind: ContextKind = "ring"
    recompute_parts: str = ""
    fused_accumulation: bool = False
    expert_tensor_parallel: int = 0
    expert_capacity: float = 0.0
    dispatch_precision: DispatchPrecision = "bf16"
    bf16_layers_at_start: int = 0
    bf16_layers_at_end: int = 0
    fp8_scaling: Fp8Scaling = "current"
    fp8_transposes: bool | None = None
    offload_parts: str = ""
    offload_share: float = 1.0
    offload_optimizer: float = 0.0
    linear_precisions: str = ""
    rank_order: RankOrderChoice = "two"
    placement: PlacementChoice = "solve"
    frozen: tuple[str, ...] = ()
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    economics: Economics = field(default_factory=Economics)

    def __post_init__(self) -> None:
        convert_fields(self, "study")
        check_study_name(self.name)
        if (self.model is None) == (not self.workloads):
            raise InputError(
                "A study has either a model or [[workloads]]; exactly one of them must be given."
            )
        if not self.cluster:
            raise InputError("cluster is missing: a study needs a network, a preset or a file.")
        check_size("devices", self.devices, MOST_DEVICES)
        check_size("global_batch", self.global_batch, MOST_SAMPLES)
        _check_degrees(self.tensor_parallel)
        self._check_training()
        self._check_trained()
        self._check_workloads()
        if not self.objectives or len(set(self.objectives)) != len(self.objectives):
            raise InputError(
                f"objectives is {list(self.objectives)}, but it must list different objectives."
            )
        if self.search.sampler is None:
            best = replace(self.search, sampler=default_sampler(self))
            object.__setattr__(self, "search", best)
        self._check_search()
        self._check_paid()

    __repr__ = short_repr

    @property
    def runs(self) -> tuple[WorkloadSpec, ...]:
        """The workloads of the study."""
        if self.workloads:
            return self.workloads
        assert self.model is not None
        return (WorkloadSpec(self.model),)

    @property
    def sampler(self) -> SamplerName:
        """The sampler, by default `default_sampler`."""
        assert self.search.sampler is not None
        return self.search.sampler

    @property
    def objective_kinds(self) -> tuple[ObjectiveKind, ...]:
        """The objectives."""
        return tuple(OBJECTIVES[name] for name in self.objectives)

    @property
    def is_paid(self) -> bool:
        """Whether an objective or a limit depends on what chips cost."""
        return self.constraints.is_paid or not {*PAID_OBJECTIVES}.isdisjoint(self.objectives)

    @property
    def unbounded_limits(self) -> tuple[str, ...]:
        """The keys of the limits that no bound knows: the best bounds may be of violating designs.

        A limit that every design keeps is left out.
        """
        most, devices = self.constraints.max_devices, self.space.values_of("devices")
        matters = most is not None and most < max(map(int, devices or (self.devices,)))
        return ("max_devices",) if matters else ()

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the values of a trial; several workloads have values relative to a baseline."""
        several = len(self.runs) > 1
        return tuple(
            f"relative_{kind.name}" if several and kind.name != "area" else kind.metric
            for kind in self.objective_kinds
        )

    @property
    def reference(self) -> str:
        """Name of the baseline to which the values of several workloads are relative."""
        return self.relative_to or (self.baselines[0] if self.baselines else "")

    @property
    def models(self) -> str:
        """The names of the workloads as text."""
        return ", ".join(run.name for run in self.runs)

    @property
    def training_values(self) -> dict[str, Any]:
        """The options of the training run, which hold for options without an axis."""
        return {name: getattr(self, name) for name in TRAINING_NAMES}

    def _check_training(self) -> None:
        """Refuse options of the training run that are not allowed."""
        fixed: dict[str, Any] = self.training_values
        attention = fixed.pop("attention")
        schedule = fixed.pop("pipeline_schedule")
        if schedule is not None and "pipeline_schedule" in self.space.axes:
            raise InputError(_STATED_TWICE.format("pipeline_schedule"))
        if attention is not None and "attention" in self.space.axes:
            raise InputError(_STATED_TWICE.format("attention"))
        largest = max(map(int, self.space.values_of("microbatch")), default=self.microbatch)
        batches = [run.global_batch or self.global_batch for run in self.runs]
        batch = max(map(int, self.space.values_of("global_batch")), default=min(batches))
        if largest > batch:
            searched = "microbatch" in self.space.axes
            where = "space.microbatch goes up to" if searched else "microbatch is"
            raise InputError(
                f"{where} {largest}, but it must not be above the global batch of {batch}."
            )
        self._check_together({**fixed, "pipeline_schedule": schedule})
        if "solve" in (self.recompute, *self.space.values_of("recompute")):
            raise InputError(
                "recompute is solve, which belongs to evaluate and explain; a study has axes that "
                'are solved: recompute = { solve = ["none", "full"] }, recompute_parts = { solve = '
                '["", "mlp", "mlp,layernorm"] }.'
            )

    def _check_together(self, fixed: Mapping[str, Any]) -> None:
        """Refuse options that exclude each other, whatever is chosen of the space."""
        refused = _exclusion(fixed)
        if refused is None:
            return
        for chosen in self.space.training_options():
            refused = _exclusion({**fixed, **chosen})
            if refused is None:
                return
        raise refused

    @property
    def trained(self) -> Trained | None:
        """What of the models is trained, where it is not all."""
        return trained_parts(self.frozen, self.lora_rank, self.lora_targets)

    def _check_trained(self) -> None:
        """Refuse frozen weights that replicas would share out."""
        stages = self.space.values_of("zero") or (self.zero,)
        if self.trained is not None and 3 in stages:
            raise InputError(
                "zero is 3, but weights that are not trained are not shared out among replicas; it "
                "must be 0, 1 or 2."
            )

    def _check_search(self) -> None:
        """Refuse a sampler that cannot take the objectives."""
        sampler = self.sampler
        check_objectives(sampler, len(self.objectives))
        (first, *_) = self.objectives
        if sampler == "bound" and first not in BOUNDED_OBJECTIVES:
            raise InputError(
                f"No bound is known for the objective {first}, which the sampler bound needs. "
                f"Bounded: {', '.join(BOUNDED_OBJECTIVES)}."
            )

    def _check_paid(self) -> None:
        """Refuse dollars, watts and carbon of chips whose dies nobody knows."""
        paid: list[str] = [name for name in self.objectives if name in PAID_OBJECTIVES]
        paid += [name for name in _PAID_LIMITS if getattr(self.constraints, name) is not None]
        if paid and self.area.model != "chip":
            raise InputError(
                f"{paid[0]} needs the area of dies, which the area model {self.area.model} does "
                'not say; write model = "chip" under [area].'
            )

    def _check_workloads(self) -> None:
        """Refuse workloads with equal names, or without a common baseline."""
        names = [run.name for run in self.runs]
        if len(set(names)) != len(names):
            raise InputError(
                f"workloads are named {', '.join(names)}, but each needs its own name."
            )
        if len(names) > 1 and not self.baselines:
            raise InputError(
                "Several workloads are compared relative to a baseline, but baselines is empty."
            )
        if self.relative_to is not None and self.relative_to not in self.baselines:
            raise InputError(
                f"relative_to is {self.relative_to!r}, but it must be one of the baselines: "
                f"{', '.join(self.baselines)}."
            )
        for axis in ("attention", "global_batch"):
            if axis in self.space.axes and any(getattr(run, axis) for run in self.workloads):
                raise InputError(_STATED_TWICE.format(axis))


def default_sampler(spec: StudySpec) -> SamplerName:
    """Return the sampler that is near the optimum soonest; ``studies/README.md`` has the figures.

    ``tpe`` for several objectives; ``bound`` if the objective has a bound that knows all limits,
    and the chips of the space can be listed; else ``climb``, the best sampler without bounds.
    """
    if len(spec.objectives) > 1:
        return "tpe"
    searched = spec.space.searched.items()
    sizes = [len(axis.values) for name, axis in searched if kind_of(name) == "chip"]
    listed = math.prod(sizes) <= MOST_CHIPS and not spec.unbounded_limits
    return "bound" if listed and spec.objectives[0] in BOUNDED_OBJECTIVES else "climb"


_STATED_TWICE = "{0} is stated in the study and is an axis of its space; give one of them."


def _exclusion(options: Mapping[str, Any]) -> InputError | None:
    """Say why options of a training run cannot be together; ``None`` if they can."""
    try:
        training_of(options, None)
    except InputError as error:
        return error
    return None


def _check_degrees(degrees: TensorDegrees | None) -> None:
    """Refuse tensor degrees below 1, and an empty list."""
    if isinstance(degrees, tuple) and (not degrees or min(degrees) < 1):
        raise InputError(
            f"tensor_parallel is {list(degrees)}, but it must list degrees of at least 1."
        )


def check_study_name(name: str) -> None:
    """Refuse a study name that could be harmful in a shell, a file name or a terminal.

    Raises
    ------
    InputError
        If the name is empty, too long or holds other characters.
    """
    allowed = all(letter.isalnum() or letter in "-_." for letter in name)
    if not (0 < len(name) <= 100 and allowed and name.isascii() and name[0].isalnum()):
        raise InputError(
            f"The study name {name!r} is not allowed: up to 100 ASCII letters, digits, '-', '_' "
            "and '.', the first a letter or a digit."
        )


def read_spec(path: Path) -> StudySpec:
    """Read and check a study file.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is not TOML, or a key or value is not allowed.
    """
    return from_builtins(read_toml_file(path, "study file"), StudySpec, f"study file {path}")

"""Chips that train models, each at its best over microbatch, recompute and the size of its HBM."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from phaze_opt.bounds.study_bounds import ROUNDING, StudyBounds
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.spec.axes import Fixed, Scalar
from phaze_opt.spec.axis_names import kind_of
from phaze_opt.spec.designs import Design, chip_of, cluster_of
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.ordering import Rank, best_of
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.study.study import Study
from phaze_opt.units import GIB
from phaze_opt.whole_space.scalar_bounds import ScalarBounds
from phaze_opt.workload.graph import Workload
from studies.paper.settings import Scope

PlacedBy = Literal["expert", "solve"]
PLACEMENTS: tuple[PlacedBy, ...] = ("expert", "solve")


@dataclass(frozen=True)
class Trained:
    """One model on one chip, at its best under one way to place it.

    Attributes
    ----------
    model, chip, placed_by
        What was evaluated; the chip by its name in the comparison.
    throughput_samples_per_s
        0 where nothing fits.
    least_time_s, time_per_batch_s
        What rooflines of the chip allow at least, and what it takes.
    hbm_gib, microbatch, recompute
        The best ones.
    degrees
        Pipeline, data and tensor parallelism.
    bound_by
        Share of the operators' seconds by the resource that binds them.
    time_breakdown_s
        Of a batch on the stage with the largest load.
    """

    model: str
    chip: str
    placed_by: PlacedBy
    throughput_samples_per_s: float
    least_time_s: float = 0.0
    time_per_batch_s: float | None = None
    area_mm2: float | None = None
    hbm_gib: float = 0.0
    microbatch: int = 0
    recompute: str = ""
    degrees: tuple[int, int, int] = (0, 0, 0)
    unused_devices: int = 0
    mfu: float = 0.0
    hfu: float = 0.0
    power_w: float = 0.0
    bound_by: Mapping[str, float] | None = None
    time_breakdown_s: Mapping[str, float] | None = None

    @property
    def degrees_text(self) -> str:
        """Degrees as commands take them."""
        return "x".join(map(str, self.degrees)) if self.time_per_batch_s else "–"


@dataclass(frozen=True)
class Comparison:
    """The main comparison: every model on every chip, under every way to place it."""

    scope: Scope
    runs: tuple[Trained, ...]

    def run(self, model: str, chip: str, placed_by: PlacedBy) -> Trained:
        """Return one run of the main comparison."""
        return next(
            run
            for run in self.runs
            if (run.model, run.chip, run.placed_by) == (model, chip, placed_by)
        )


def train(
    study: Study,
    workload: Workload,
    name: str,
    chip: Accelerator,
    placed_by: PlacedBy,
    *,
    own_hbm: bool,
) -> Trained:
    """Evaluate a model on a chip at its best over the options of a study.

    Parameters
    ----------
    study
        Its space has the options; axes that are fixed hold for every chip, so that a study can
        change a property of all chips.
    workload
        The study's.
    name
        Of the chip.
    chip
        With any size of the HBM unless ``own_hbm``.
    placed_by
        How the model is placed.
    own_hbm
        Whether the chip keeps its HBM; otherwise the space has the sizes.
    """
    resolved = study.resolved
    designs = designs_of(resolved, chip, own_hbm=own_hbm)
    schedules: MutableMapping[str, Schedule] = {}
    ranked = []
    for place, design in enumerate(designs):
        evaluation = _evaluate(resolved, workload, design, placed_by, schedules)
        if evaluation.feasible:
            rank = Rank(
                evaluation.throughput_samples_per_s,
                design.accelerator.hbm_bytes,
                evaluation.area_mm2 or 0.0,
                evaluation.energy_j_per_batch,
                (place,),
            )
            ranked.append((rank, (design, evaluation)))
    best = best_of(ranked)
    model = str(resolved.spec.model)
    if best is None:
        return Trained(model, name, placed_by, 0.0, area_mm2=chip.area_under(_area(resolved)))
    design, evaluation = best
    return _trained(resolved, workload, name, placed_by, design, evaluation)


def _trained(
    resolved: ResolvedStudy,
    workload: Workload,
    name: str,
    placed_by: PlacedBy,
    design: Design,
    evaluation: Evaluation,
) -> Trained:
    """Take from an evaluation what tables and checks need."""
    placement = evaluation.placement
    assert placement is not None
    return Trained(
        model=str(resolved.spec.model),
        chip=name,
        placed_by=placed_by,
        throughput_samples_per_s=evaluation.throughput_samples_per_s,
        least_time_s=roofline_s(resolved, workload, design),
        time_per_batch_s=evaluation.time_per_batch_s,
        area_mm2=design.accelerator.area_under(_area(resolved)),
        hbm_gib=design.accelerator.hbm_bytes / GIB,
        microbatch=int(str(design.options["microbatch"])),
        recompute=str(design.options["recompute"]),
        degrees=(placement.pipeline, placement.data, placement.tensor),
        unused_devices=evaluation.unused_devices,
        mfu=evaluation.mfu,
        hfu=evaluation.hfu or 0.0,
        power_w=evaluation.power_w_per_device,
        bound_by=evaluation.bound_by_share,
        time_breakdown_s=evaluation.time_breakdown_s,
    )


def roofline_s(resolved: ResolvedStudy, workload: Workload, design: Design) -> float:
    """Return the least time of a batch that the peak rates of a chip allow.

    It is written for the verification of certificates, without a line of the program that
    evaluates or bounds single chips.
    """
    solving = replace(resolved, spec=replace(resolved.spec, placement="solve"))
    plain = ScalarBounds(StudyBounds(solving, [workload]))
    (samples_per_s,) = plain.of_box(design, range(0), [0.0])
    (inputs,) = run_inputs(solving, 0, design)
    return inputs.training.global_batch / samples_per_s * (1.0 + ROUNDING)


def _area(resolved: ResolvedStudy) -> Literal["phaze-22nm", "chip"]:
    return resolved.spec.area.model


def designs_of(resolved: ResolvedStudy, chip: Accelerator, *, own_hbm: bool) -> list[Design]:
    """Return a chip with every size of the HBM under every combination of options; see `train`."""
    return [
        design
        for sized in _sizes(resolved, _as_studied(resolved, chip), own_hbm)
        for design in _designs(resolved, sized)
    ]


def _as_studied(resolved: ResolvedStudy, chip: Accelerator) -> Accelerator:
    """Return a chip with the numbers that the space fixes for all chips."""
    return chip_of(chip, _fixed(resolved, "chip"))


def _fixed(resolved: ResolvedStudy, kind: str) -> dict[str, Scalar]:
    """Return the fixed axes of a space that are of one kind, the size of the HBM aside."""
    axes = resolved.spec.space.axes
    return {
        name: axis.value
        for name, axis in axes.items()
        if isinstance(axis, Fixed) and kind_of(name) == kind and name != "hbm_gib"
    }


def _sizes(resolved: ResolvedStudy, chip: Accelerator, own_hbm: bool) -> list[Accelerator]:
    """Return a chip with every size of the HBM that it may have."""
    sizes = resolved.spec.space.values_of("hbm_gib")
    if own_hbm or not sizes:
        return [chip]
    return [chip_of(chip, {"hbm_gib": size}) for size in sizes]


def _designs(resolved: ResolvedStudy, chip: Accelerator) -> Sequence[Design]:
    """Return a chip under every combination of the training options."""
    network = cluster_of(resolved.cluster, _fixed(resolved, "network"))
    values = resolved.spec.training_values
    return [
        Design(chip, network, resolved.spec.cluster, {**values, **options})
        for options in resolved.spec.space.training_options()
    ]


def _evaluate(
    resolved: ResolvedStudy,
    workload: Workload,
    design: Design,
    placed_by: PlacedBy,
    schedules: MutableMapping[str, Schedule],
) -> Evaluation:
    """Evaluate one design."""
    (inputs,) = run_inputs(resolved, 0, design)
    return evaluate(
        workload,
        design.accelerator,
        design.cluster,
        inputs.training,
        placed_by,
        cache=schedules,
    )

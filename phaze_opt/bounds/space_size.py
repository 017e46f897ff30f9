"""The size of a space, and the time and memory to bound it: shown before a search begins."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from phaze_opt.bounds.box_order import MOST_AT_ONCE, are_bounded_at_once
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.errors import InputError
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.placement.candidates import candidate_grids
from phaze_opt.point import bare_problem
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import run_inputs
from phaze_opt.units import GIB, MIB, counted
from phaze_opt.workload.graph import Workload

# Measured on the spaces of the paper and of the quickstart: 0.4 to 2.8 s, and 290 to 580 MB.
# Candidates that differ only in the recompute of layers share the first of these times.
_CANDIDATE_S, _FITTING_S, _CELL_S = 1.6e-5, 5e-6, 4e-6
_BASE_BYTES, _CHIP_BYTES = 250 * MIB, 500
# Measured on spaces of 10^8 and 10^10 chips, of which the boxes far from the best are not opened,
# and on one of 3.7 million boxes, which are not bounded one by one.
_MOST_OPENED, _BOX_BYTES, _BOUNDED_BYTES = 500_000, 170, 1_500


@dataclass(frozen=True)
class SpaceSize:
    """The size of a space.

    Attributes
    ----------
    points
        Number of designs whose chip is buildable and within the limits.
    options
        Number of combinations of the searched axes that do not belong to the chip.
    chips, boxes
        Number of architectures, and of sets of them with equal peak rates.
    candidates
        Number of degrees of parallelism that the bounds of boxes tabulate, over all options.
    boxes_s
        Estimated seconds to bound the boxes under all options, on one core; of many boxes, as many
        as are bounded at once.
    memory_bytes
        Estimated memory of a process that bounds the space.
    """

    points: int
    options: int
    chips: int
    boxes: int
    candidates: int
    boxes_s: float
    memory_bytes: float

    def __str__(self) -> str:
        return (
            f"{counted(self.points, 'point')}: {self.options:,} × {counted(self.chips, 'chip')} in "
            f"{counted(self.boxes, 'box', 'boxes')}, which take about "
            f"{max(1.0, self.boxes_s):.0f} s on one core; then come the chips of the best boxes"
        )

    def check_memory(self, most_gib: float) -> None:
        """Refuse a space that needs more memory than allowed.

        Raises
        ------
        InputError
            If the space needs more; the sentence names both numbers.
        """
        if not most_gib > 0.0:
            raise InputError(f"memory-gib is {most_gib}, but it must be positive.")
        need_gib = self.memory_bytes / GIB
        if need_gib > most_gib:
            raise InputError(
                f"The enumeration takes about {need_gib:.2g} GiB, more than {most_gib:g}; fix some "
                "axes of the space."
            )


def space_size(study: ResolvedStudy, workloads: Sequence[Workload]) -> SpaceSize:
    """Return the size of a study's space.

    Parameters
    ----------
    study, workloads
        See `phaze_opt.spec.freezing.freeze`.

    Raises
    ------
    InputError
        If the space is too large to be listed.
    """
    grid = PointGrid.of(study)
    options, sizes, chips = grid.shape
    boxes = len(grid.chips.first) - 1
    layers = max(len(variant.nodes) for workload in workloads for variant in workload.variants)
    at_once = are_bounded_at_once(grid, StudyBounds(study, workloads))
    bounded = boxes if at_once else min(boxes, MOST_AT_ONCE)
    work = _bounding_work(study, workloads, grid)
    # Per stage: a limit for each memory size, the bytes of its state and of its stash.
    tables = sum(work.memory_tables.values()) * layers * (layers + 1) * 8 * (sizes + 2)
    return SpaceSize(
        points=grid.points,
        options=options,
        chips=chips,
        boxes=boxes,
        candidates=work.candidates,
        boxes_s=sum(work.shared.values()) * _CANDIDATE_S
        + work.candidates * _FITTING_S
        + work.variants * bounded * _CELL_S,
        memory_bytes=_BASE_BYTES
        + boxes * _BOX_BYTES
        + bounded * (_BOUNDED_BYTES + options * sizes * 8)
        + min(chips, _MOST_OPENED) * _CHIP_BYTES
        + tables,
    )


@dataclass
class _BoundingWork:
    """The number of tables that the bounds of boxes need.

    Attributes
    ----------
    variants
        Models at a tensor degree, each under a combination of searched and solved options.
    candidates
        Placement candidates of all variants.
    shared
        Placement candidates by all inputs except the recompute, which only the memory depends on.
    memory_tables
        Tables of the bytes of stages, one per number of replicas that share state, by what decides
        them: networks with equally many devices share them.
    """

    variants: int = 0
    candidates: int = 0
    shared: dict[Hashable, int] = field(default_factory=dict)
    memory_tables: dict[Hashable, int] = field(default_factory=dict)


def _bounding_work(
    study: ResolvedStudy, workloads: Sequence[Workload], grid: PointGrid
) -> _BoundingWork:
    """Count the tables of all options."""
    bounds, work = StudyBounds(study, workloads), _BoundingWork()
    for option in range(len(grid.options) if len(grid.chips) > 0 else 0):
        try:
            design = study.design(grid.point(option, 0, 0))
            runs = [run_inputs(study, run, design) for run in range(len(study.spec.runs))]
        except InputError:
            continue  # the options exclude each other, and are not bounded
        fusion = default_fusion(design.accelerator)
        wholes = [(run, whole) for run, of_run in enumerate(runs) for whole in of_run]
        slices = [(run, inputs) for run, whole in wholes for inputs in bounds.on_slices(whole)]
        for run, inputs in slices:
            cluster, training = inputs.cluster, inputs.training
            for variant in bounds.variants(inputs):
                work.variants += 1
                tensor = variant.tensor_parallel
                problem = bare_problem(variant, cluster, training, fusion)
                if study.spec.placement == "solve":
                    count = sum(len(grid.data) for grid in candidate_grids(problem))
                    work.candidates += count
                    any_kept = replace(training, recompute="none", recompute_parts="")
                    shared = run, tensor, cluster, any_kept
                    work.shared[shared] = count
                tables = cluster.devices // tensor if training.zero > 0 else 1
                work.memory_tables[run, tensor, cluster.devices, training] = tables
    return work

"""How large a space is, and what bounding it takes: said before a search begins."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

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

# Measured on the paper's spaces and on the quickstart's: 1.4 to 12 s, and 270 to 890 MB. The first
# is taken once by candidates that differ in nothing but what layers keep.
_CANDIDATE_S, _FITTING_S, _CELL_S = 8e-5, 2.5e-5, 2e-5
_BASE_BYTES, _CHIP_BYTES = 250 * MIB, 500


@dataclass(frozen=True)
class SpaceSize:
    """The size of a space.

    Attributes
    ----------
    points
        Designs whose chip is buildable and within the limits.
    options
        Combinations of what is searched beside the chip.
    chips, boxes
        Architectures, and sets of them with equal peak rates.
    candidates
        Degrees of parallelism that are tabulated to bound the boxes, of all options together.
    boxes_s
        About how long it takes to bound all boxes under all options, on one core.
    memory_bytes
        About what a process takes that bounds them.
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
        """Refuse a space that takes more memory than there may be.

        Raises
        ------
        InputError
            Naming what it takes.
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
    layers = max(len(one.nodes) for each in workloads for one in each.variants)
    work = _work(study, workloads, grid)
    # Per stage and memory size: its limit; beside it the bytes of its state and of its stash.
    tables = work.memory_tables * layers * (layers + 1) * 8 * (sizes + 2)
    return SpaceSize(
        points=grid.points,
        options=options,
        chips=chips,
        boxes=boxes,
        candidates=work.candidates,
        boxes_s=sum(work.shared.values()) * _CANDIDATE_S
        + work.candidates * _FITTING_S
        + work.variants * boxes * _CELL_S,
        memory_bytes=_BASE_BYTES + chips * _CHIP_BYTES + tables,
    )


@dataclass
class _Work:
    """What the bounds of boxes tabulate.

    Attributes
    ----------
    variants
        Models at a width, each under a combination of searched and solved options.
    candidates
        Of their placements.
    shared
        The same by all that they depend on but for the memory.
    memory_tables
        Of what stages hold: one for every number of replicas that share state.
    """

    variants: int = 0
    candidates: int = 0
    shared: dict[Hashable, int] = field(default_factory=dict)
    memory_tables: int = 0


def _work(study: ResolvedStudy, workloads: Sequence[Workload], grid: PointGrid) -> _Work:
    """Count what is tabulated for all options."""
    rule, work = StudyBounds(study, workloads), _Work()
    for option in range(len(grid.options) if len(grid.chips) > 0 else 0):
        try:
            design = study.design(grid.point(option, 0, 0))
            runs = [run_inputs(study, run, design) for run in range(len(study.spec.runs))]
        except InputError:
            continue  # such options exclude each other, and are not bounded
        fusion = default_fusion(design.accelerator)
        wholes = [(run, one) for run, of_run in enumerate(runs) for one in of_run]
        for run, one in ((run, one) for run, whole in wholes for one in rule.on_slices(whole)):
            for variant in rule.variants(one):
                work.variants += 1
                problem = bare_problem(variant, one.cluster, one.training, fusion)
                if study.spec.placement == "solve":
                    count = sum(len(grid.data) for grid in candidate_grids(problem))
                    training = replace(one.training, recompute="none")
                    work.candidates += count
                    work.shared[run, variant.tensor_parallel, one.cluster, training] = count
                shared = one.training.zero > 0
                work.memory_tables += (
                    one.cluster.devices // variant.tensor_parallel if shared else 1
                )
    return work

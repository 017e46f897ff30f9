"""How large a space is, and what bounding it takes: said before an enumeration begins."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.errors import InputError
from phaze_opt.search.freezing import tensor_parallel
from phaze_opt.search.frozen import ResolvedStudy
from phaze_opt.search.grid import Grid
from phaze_opt.search.objective import run_inputs
from phaze_opt.search.store.stored_study import StoredStudy
from phaze_opt.units import GIB, MIB, counted

# Measured on the paper's spaces and on the quickstart's: 2 to 11 s, and 270 to 890 MB.
_OPTION_S, _CELL_S = 0.2, 3e-4
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
    boxes_s
        About how long it takes to bound all boxes under all options, on one core.
    memory_bytes
        About what a process takes that bounds them.
    """

    points: int
    options: int
    chips: int
    boxes: int
    boxes_s: float
    memory_bytes: float

    def __str__(self) -> str:
        return (
            f"{counted(self.points, 'point')}: {self.options:,} × {counted(self.chips, 'chip')} in "
            f"{counted(self.boxes, 'box', 'boxes')}, which take about "
            f"{max(1.0, self.boxes_s):.0f} s"
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


def space_size(study: StoredStudy) -> SpaceSize:
    """Return the size of a study's space.

    Raises
    ------
    InputError
        If the space is too large to be listed.
    """
    grid = Grid.of(study.resolved)
    options, sizes, chips = grid.shape
    boxes = len(grid.chips.first) - 1
    layers = max(len(one.nodes) for each in study.workloads() for one in each.variants)
    # Per stage and memory size: its limit; beside it the bytes of its state and of its stash.
    tables = _memory_tables(study.resolved, grid) * layers * (layers + 1) * 8 * (sizes + 2)
    return SpaceSize(
        points=grid.points,
        options=options,
        chips=chips,
        boxes=boxes,
        boxes_s=options * (_OPTION_S + boxes * _CELL_S),
        memory_bytes=_BASE_BYTES + chips * _CHIP_BYTES + tables,
    )


def _memory_tables(study: ResolvedStudy, grid: Grid) -> int:
    """Count the tables of what stages hold: one for every number of replicas that share state."""
    found = 0
    for option in range(len(grid.options) if len(grid.chips) > 0 else 0):
        try:
            design = study.design(grid.point(option, 0, 0))
            runs = [run_inputs(study, run, design) for run in range(len(study.spec.runs))]
        except InputError:
            continue  # such options exclude each other, and are not bounded
        for run, of_run in zip(study.spec.runs, runs, strict=True):
            for width in tensor_parallel(study.spec, run):
                for one in of_run:
                    shared = one.training.zero > 0
                    found += one.cluster.devices // width if shared else 1
    return found

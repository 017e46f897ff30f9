"""Bounds of parts of a space: boxes of chips by rooflines, single chips by their layers.

A part is some architectures under one combination of options. Bounds are stored when they are
computed: every process that bounds an equal part gets equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.point_grid import PointGrid
from phaze_opt.bounds.study_bounds import StudyBounds
from phaze_opt.errors import InputError
from phaze_opt.estimator.fitting_tiles import where_tiles_fit
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.frozen import content_hash
from phaze_opt.store.enumerations import BoundStore, rounded_up


@dataclass(frozen=True)
class SpacePart:
    """Architectures that are bounded under one combination of options."""

    option: int
    rows: tuple[tuple[int, int], ...]
    """Runs of architectures: the first of each run, and the end (exclusive)."""

    @cached_property
    def architectures(self) -> IntArray:
        """The rows of the architectures."""
        return np.concatenate([np.arange(*run) for run in self.rows])


class PendingBounds(Protocol):
    """Bounds that another process computes: an array of shape (sizes, architectures) per part."""

    def result(self) -> list[FloatArray]:
        """Wait for the bounds and return them."""
        ...


class Bounder(Protocol):
    """Computes bounds of parts of a space; see `phaze_opt.whole_space.pools`."""

    ahead: int
    """Number of batches to bound before they are needed."""

    def bound(self, parts: Sequence[SpacePart]) -> PendingBounds:
        """Bound the architectures of each part."""
        ...


def parts_of(runs: Iterable[tuple[int, tuple[int, int]]]) -> list[SpacePart]:
    """Join runs of architectures, each with its option, to one part per option."""
    of_option: dict[int, list[tuple[int, int]]] = {}
    for option, run in runs:
        of_option.setdefault(option, []).append(run)
    return [SpacePart(option, tuple(sorted(own))) for option, own in sorted(of_option.items())]


def stored_bounds(
    grid: PointGrid,
    study_bounds: StudyBounds,
    store: BoundStore | None,
    parts: Sequence[SpacePart],
) -> tuple[str, list[FloatArray] | None]:
    """Return the key of the bounds of some parts, and the bounds, ``None`` if none are stored."""
    plain = [[part.option, *part.rows] for part in parts]
    key = content_hash([*study_bounds.question, "chips", plain])
    stored = None if store is None else store.find(key)
    ends = np.cumsum([len(part.architectures) for part in parts])
    if stored is None or stored.shape != (grid.shape[1], ends[-1]):
        return key, None
    return key, np.split(stored, ends[:-1], axis=1)


def bounds_of_boxes(
    grid: PointGrid, study_bounds: StudyBounds, store: BoundStore | None
) -> FloatArray:
    """Bound the boxes of a space by rooflines, or take the stored bounds.

    Returns
    -------
    bounds : (options, sizes, boxes)
    """
    options, sizes, _ = grid.shape
    boxes = len(grid.chips.first) - 1
    key = content_hash([*study_bounds.question, "boxes"])
    bounds = None if store is None else store.find(key)
    if bounds is None or bounds.shape != (options * sizes, boxes):
        per_option = np.zeros((options, sizes, boxes))
        if boxes:
            chips = study_bounds.ways.box_times(grid.chips).boxes
            for option in range(options):
                per_option[option] = bounds_of(grid, study_bounds, option, chips)
        bounds = rounded_up(per_option.reshape(options * sizes, boxes))
        if store is not None:
            store.keep(key, bounds)
    return bounds.reshape(options, sizes, boxes)


def bound_parts(
    grid: PointGrid, study_bounds: StudyBounds, parts: Sequence[SpacePart]
) -> list[FloatArray]:
    """Bound the architectures of each part; see `Bounder.bound`."""
    rows = np.unique(np.concatenate([part.architectures for part in parts]))
    all_chips = BoundedChips.of(grid.chips, rows)
    # Options that bound the same architectures share the bounds of their layers.
    shared: dict[tuple[tuple[int, int], ...], BoundedChips] = {}
    bounds = []
    for part in parts:
        if part.rows not in shared:
            shared[part.rows] = all_chips.some(np.searchsorted(rows, part.architectures))
        chips = shared[part.rows]

        def bound(
            which: IntArray, part: SpacePart = part, chips: BoundedChips = chips
        ) -> FloatArray:
            some = chips if len(which) == len(chips.area_mm2) else chips.some(which)
            return bounds_of(grid, study_bounds, part.option, some)

        none = np.zeros((len(chips.hbm_bytes), 1))
        bounds.append(where_tiles_fit(bound, np.arange(len(chips.area_mm2)), none))
    return bounds


def bounds_of(
    grid: PointGrid, study_bounds: StudyBounds, option: int, chips: BoundedChips
) -> FloatArray:
    """Bound architectures, or boxes, under one combination of options.

    Raises
    ------
    NoTileFitsError
        If no tile of a product fits one of the architectures.
    """
    try:
        design = grid.study.design(grid.point(option, 0, 0))
    except InputError:
        # The network does not exist: every evaluation is refused, too.
        return np.zeros(chips.hbm_bytes.shape)
    return study_bounds.values(design, chips)

"""Bounds of parts of a space: boxes of chips by rooflines, single chips by their layers.

A part is some architectures under one combination of options. Bounds are stored as they are
computed; whatever has the same parts bounded, in whichever process, gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.point_grid import Grid
from phaze_opt.bounds.study_bounds import Bounded, Bounds
from phaze_opt.errors import InputError
from phaze_opt.estimator.tensor_core import NoTileFitsError
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.frozen import content_hash
from phaze_opt.store.enumerations import BoundStore, rounded_up


@dataclass(frozen=True)
class Part:
    """Some architectures that are bounded under one combination of options."""

    option: int
    rows: tuple[tuple[int, int], ...]
    """First architecture of each run of them, and the one after its last."""

    @cached_property
    def architectures(self) -> IntArray:
        """Return the architectures."""
        return np.concatenate([np.arange(*run) for run in self.rows])


class Waited(Protocol):
    """Bounds that are computed somewhere: an array of shape (sizes, architectures) per part."""

    def result(self) -> list[FloatArray]:
        """Wait for them."""
        ...


class Bounder(Protocol):
    """Bounds parts of a space, here or elsewhere; see `phaze_opt.whole_space.pools`."""

    ahead: int
    """Batches that are bounded before they are asked for."""

    def bound(self, parts: Sequence[Part]) -> Waited:
        """Bound the architectures of each part."""
        ...


@dataclass(frozen=True, eq=False)
class Known:
    """Bounds that are computed."""

    bounds: list[FloatArray]

    def result(self) -> list[FloatArray]:
        """Return them."""
        return self.bounds


class BoundHere:
    """Bounds parts in this process, when they are asked for."""

    ahead = 0

    def __init__(self, grid: Grid, rule: Bounds) -> None:
        self._grid = grid
        self._rule = rule

    def bound(self, parts: Sequence[Part]) -> Waited:
        """Bound them at once."""
        return Known(bound_parts(self._grid, self._rule, parts))


def parts_of(runs: Iterable[tuple[int, tuple[int, int]]]) -> list[Part]:
    """Return what is bounded of some runs of architectures, each with its option: a part each."""
    of_option: dict[int, list[tuple[int, int]]] = {}
    for option, run in runs:
        of_option.setdefault(option, []).append(run)
    return [Part(option, tuple(sorted(own))) for option, own in sorted(of_option.items())]


def stored_bounds(
    grid: Grid, store: BoundStore | None, parts: Sequence[Part]
) -> tuple[str, list[FloatArray] | None]:
    """Return the key of the bounds of some parts, and the bounds where they are stored."""
    plain = [[part.option, *part.rows] for part in parts]
    key = content_hash([grid.study.question_hash, "chips", plain])
    found = None if store is None else store.find(key)
    ends = np.cumsum([len(part.architectures) for part in parts])
    if found is None or found.shape != (grid.shape[1], ends[-1]):
        return key, None
    return key, np.split(found, ends[:-1], axis=1)


def bounds_of_boxes(grid: Grid, rule: Bounds, store: BoundStore | None) -> FloatArray:
    """Bound the boxes of a space by rooflines, or take the stored bounds.

    Returns
    -------
    bounds : (options, sizes, boxes)
    """
    options, sizes, _ = grid.shape
    boxes = len(grid.chips.first) - 1
    key = content_hash([grid.study.question_hash, "boxes"])
    found = None if store is None else store.find(key)
    if found is None or found.shape != (options * sizes, boxes):
        some = Bounded.boxes(grid.chips) if boxes else None
        bounds = np.zeros((options, sizes, boxes))
        for option in range(options if some else 0):
            assert some is not None
            bounds[option] = bounds_of(grid, rule, option, some)
        found = rounded_up(bounds.reshape(options * sizes, boxes))
        if store is not None:
            store.keep(key, found)
    return found.reshape(options, sizes, boxes)


def bound_parts(grid: Grid, rule: Bounds, parts: Sequence[Part]) -> list[FloatArray]:
    """Bound the architectures of each part; see `Bounder.bound`."""
    rows = np.unique(np.concatenate([part.architectures for part in parts]))
    every = Bounded.of(grid.chips, rows)
    # Options that bound the same architectures share the bounds of their layers.
    shared: dict[tuple[tuple[int, int], ...], Bounded] = {}
    found = []
    for part in parts:
        if part.rows not in shared:
            shared[part.rows] = every.some(np.searchsorted(rows, part.architectures))
        found.append(_bound_rows(grid, rule, part.option, shared[part.rows]))
    return found


def bounds_of(grid: Grid, rule: Bounds, option: int, some: Bounded) -> FloatArray:
    """Bound some architectures, or boxes, under one combination of options.

    Raises
    ------
    NoTileFitsError
        If a product fits one of them in no way.
    """
    try:
        design = grid.study.design(grid.point(option, 0, 0))
    except InputError:
        # No such network: every evaluation is refused, too.
        return np.zeros(some.hbm_bytes.shape)
    return rule.values(design, some)


def _bound_rows(grid: Grid, rule: Bounds, option: int, some: Bounded) -> FloatArray:
    """Bound some architectures of which each may be one on which no product fits."""
    try:
        return bounds_of(grid, rule, option, some)
    except NoTileFitsError:
        # Such a chip is refused, and all that are bounded with it.
        count = len(some.architectures)
        if count == 1:
            return np.zeros((len(some.hbm_bytes), 1))
        halves = np.array_split(np.arange(count), 2)
        found = [_bound_rows(grid, rule, option, some.some(half)) for half in halves]
        return np.concatenate(found, axis=1)

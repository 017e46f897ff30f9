"""Checks the chips of opened boxes that an enumeration excluded, by bounds in plain Python.

The arrays that excluded them may be wrong. The check therefore bounds the chips of every opened
cell again, and evaluates the designs that these bounds do not exclude. Of very many chips, it takes
those that the arrays say come nearest to the top, and an even sample of the others: the chips of a
box stand in the order of their axes, so that the sample has all shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.bounds.bounded_chips import BoundedChips
from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.estimator.tensor_core import NoTileFitsError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.spec.designs import Design
from phaze_opt.spec.ordering import VALUE_BIN, Head, head_of, least_merit
from phaze_opt.spec.space import DesignPoint
from phaze_opt.whole_space.verification import Check, Verification, require

MOST_BOUNDS = 50_000
"""Most bounds in plain Python, one per chip, workload and combination of all options (with the
solved options); of more, the chips are a sample."""

MOST_EVALUATED = 400
"""Most designs that are evaluated, of those that the bounds do not exclude; the best bounds first.
"""

_SMALLEST = 1.0 - 1e-12
"""Factor below the relative difference of the area of a chip in an array and alone (last bits)."""


@dataclass(frozen=True)
class _Cell:
    """A box under one combination of options: all its chips, and the chips that are bounded."""

    option: int
    rows: range
    chosen: Sequence[int]


def _option(cell: _Cell) -> int:
    """Return the combination of options of a cell."""
    return cell.option


def check_chips(verification: Verification) -> list[Check]:
    """Bound the excluded chips again, and evaluate the designs that may be in the top."""
    cells = list(_cells(verification))
    looked = sum(len(cell.chosen) for cell in cells)
    total = sum(len(cell.rows) for cell in cells)
    left: list[tuple[Head, DesignPoint, float]] = []
    for _, of_option in groupby(sorted(cells, key=_option), key=_option):
        for cell in of_option:
            left += _left_of(verification, cell)
        verification.scalar.forget()
    left.sort(key=lambda design: design[0])
    if looked == total:
        kept = {point.values for _, point, _ in left}
        require(verification.in_top <= kept, "a plain bound, which a design of the top exceeds,")
    closed = [design for design in left if design[1].values not in verification.again.evaluated]
    for _, point, bound in closed[:MOST_EVALUATED]:
        verification.below(point, bound)
    for _, point, bound in left:
        metrics = verification.again.evaluated.get(point.values)
        if metrics is not None and metrics.feasible:
            merit = verification.merit(metrics)
            require(merit <= bound, "a plain bound, which a design exceeds,")
    return [
        Check("chips of opened boxes, in plain Python", looked, total),
        Check("closed designs nearest to the top", min(len(closed), MOST_EVALUATED), len(closed)),
    ]


def _cells(verification: Verification) -> Iterator[_Cell]:
    """Yield the opened cells, box by box."""
    first, boxes = verification.grid.chips.first.tolist(), []
    for region, box in zip(verification.regions, verification.certificate.boxes, strict=True):
        alone = int(region.boxes[0])
        require(len(region.boxes) == 1 or not box.opened, "that an opened box is one")
        boxes.append((range(first[alone], first[alone + 1]), box.opened))
    total = sum(len(rows) * len(options) for rows, options in boxes)
    spec = verification.certificate.study.spec
    bounds_per_chip = len(spec.runs) * len(spec.space.solved_options())
    share = min(1.0, MOST_BOUNDS / max(total * bounds_per_chip, 1))
    for rows, options in boxes:
        for option in options:
            count = min(len(rows), max(2, int(share * len(rows))))
            chosen = rows if share == 1.0 else _sample(verification, option, rows, count)
            yield _Cell(option, rows, chosen)


def _sample(verification: Verification, option: int, rows: range, count: int) -> list[int]:
    """Return the chips of a cell with the best bounds of arrays, and an even sample of others."""
    engine = verification.engine
    part = SpacePart(option, ((rows.start, rows.stop),))
    (bounds,) = bound_parts(engine.grid, engine.rule, [part])
    nearest = np.argsort(-bounds.max(axis=0), kind="stable")[: count // 2]
    others = np.delete(np.arange(len(rows)), nearest)
    step = max(1, len(others) // (count - len(nearest)))
    spread = others[verification.generator.randrange(step) :: step]
    return [rows[at] for at in sorted({*nearest.tolist(), *spread.tolist()})]


def _left_of(verification: Verification, cell: _Cell) -> Iterator[tuple[Head, DesignPoint, float]]:
    """Yield the head, the point and the bound of the designs that plain bounds do not exclude."""
    grid, top = verification.grid, _Top.of(verification)
    chips = grid.chips
    box = chips.architecture(cell.rows.start)
    design = grid.study.design(grid.point(cell.option, 0, cell.rows.start))
    rates = _rates_of_arrays(verification, design, cell)
    rows = np.array(cell.chosen, dtype=np.int64)
    areas_mm2, sizes = chips.areas_mm2(rows).tolist(), chips.hbm_bytes(rows)
    is_paid = grid.study.spec.is_paid
    for at, row in enumerate(cell.chosen):
        area_mm2, hbm_bytes = areas_mm2[at], sizes[:, at].tolist()
        chip = _BoundedChip(
            row,
            design,
            box,
            area_mm2,
            min(top.least_merit(size, area_mm2) for size in hbm_bytes),
            None if rates is None else rates[:, :, at],
        )
        # A placement that fits any HBM fits the largest, which costs most.
        largest = int(np.argmax(hbm_bytes))
        most = _bound(verification, chip, largest, hbm_bytes[largest])
        for place, size in enumerate(hbm_bytes):
            if not is_paid and top.excludes(most, size, area_mm2):
                continue
            value = most if place == largest else _bound(verification, chip, place, size)
            if not top.excludes(value, size, area_mm2):
                head = top.head(value, size, area_mm2)
                yield head, grid.point(cell.option, place, row), value


@dataclass(frozen=True)
class _BoundedChip:
    """One chip that is bounded.

    Attributes
    ----------
    row
        Row of its architecture.
    design
        The options of the cell, with any chip of the box.
    box
        A chip of the same box.
    least
        Least merit with which the chip may be in the top.
    rates : (workloads, sizes)
        Bounds of the samples per second by arrays; ``None`` for one workload.
    """

    row: int
    design: Design
    box: Accelerator
    area_mm2: float
    least: float
    rates: FloatArray | None


def _bound(verification: Verification, chip: _BoundedChip, place: int, hbm_bytes: int) -> float:
    """Bound the merit of a chip with one size of the HBM; less than its least merit is enough."""
    scalar = verification.scalar
    design = replace(chip.design, accelerator=verification.chip(chip.row, hbm_bytes))
    # Of several workloads, all known rates are lowered by one factor.
    rates = [1.0] if chip.rates is None else chip.rates[:, place].tolist()
    known = scalar.rates_below(design, chip.row, chip.area_mm2, chip.least, rates)
    found = scalar.of_chip(design, chip.row, known, chip.box)
    return scalar.merit(design, chip.row, chip.area_mm2, found)


def _rates_of_arrays(verification: Verification, design: Design, cell: _Cell) -> FloatArray | None:
    """Return the bounds of the rates by arrays; ``None`` for a single workload."""
    grid, runs = verification.grid, len(verification.certificate.study.spec.runs)
    if runs == 1:
        return None
    chosen = BoundedChips.of(grid.chips, np.array(cell.chosen, dtype=np.int64))
    try:
        return verification.engine.rule.rates(design, chosen)
    except NoTileFitsError:
        return np.zeros((runs, *chosen.hbm_bytes.shape))


@dataclass(frozen=True)
class _Top:
    """The last design of the top, which other designs must come before to enter.

    Attributes
    ----------
    last
        Its head; ``None`` if every feasible design is in the top.
    maximise
        Whether larger values are better.
    """

    last: Head | None
    maximise: bool

    @classmethod
    def of(cls, verification: Verification) -> Self:
        """Return that of a certificate."""
        return cls(verification.certificate.last, verification.engine.rule.bounded.maximise)

    def head(self, merit: float, hbm_bytes: int, area_mm2: float) -> Head:
        """Return the head of a chip."""
        return head_of(merit, hbm_bytes, area_mm2 * _SMALLEST, self.maximise)

    def least_merit(self, hbm_bytes: int, area_mm2: float) -> float:
        """Return the least merit with which a chip may be in the top."""
        if self.last is None:
            return 0.0
        same_bin = (hbm_bytes, area_mm2 * _SMALLEST) <= self.last[1:]
        of_bin = least_merit(self.last, self.maximise)
        return of_bin if same_bin else of_bin * (1.0 + VALUE_BIN)

    def excludes(self, merit: float, hbm_bytes: int, area_mm2: float) -> bool:
        """Whether a chip of this merit cannot be in the top."""
        if merit <= 0.0:
            return True
        return self.last is not None and self.head(merit, hbm_bytes, area_mm2) > self.last

"""Checks the boxes of a certificate: that they partition the chips, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from phaze_opt.bounds.box_order import are_bounded_at_once
from phaze_opt.bounds.box_tree import BoxTree
from phaze_opt.errors import InputError
from phaze_opt.garbage import collected_later
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.spec.constraints import chip_violation
from phaze_opt.spec.designs import chip_of
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.objectives import RATE_OBJECTIVES
from phaze_opt.spec.ordering import head_of
from phaze_opt.spec.space import point_at
from phaze_opt.whole_space.certificate import CertifiedBox, rates_of
from phaze_opt.whole_space.scalar_bounds import MARGIN
from phaze_opt.whole_space.verification import (
    Check,
    Verification,
    box_key,
    is_near,
    require,
)

MOST_SCALAR_CELLS = 10_000
"""Most boxes, each under one combination of options, that plain Python bounds; a sample of more."""

MOST_SINGLE_CHIPS = 100_000
"""Most chips that are put into boxes one by one; a sample of more."""

_EVERY = 10
"""Of so many chips, one is also made from its point, and compared."""


def check_partition(verification: Verification) -> Check:
    """Put the chips into boxes one by one, and compare the counts."""
    certificate, grid = verification.certificate, verification.grid
    require(list(certificate.options) == list(grid.options), "the list of options")
    sizes, table = len(grid.chips.hbm_sizes), grid.chips.table
    shapes = {tuple(map(len, box.bounds)) for box in certificate.boxes}
    require(shapes <= {(sizes,) * len(grid.options)}, "the number of bounds of a box")
    place_of = {key: place for place, key in enumerate(verification.keys)}
    entry_of = np.empty(len(place_of), dtype=np.int64)
    for entry, region in enumerate(verification.regions):
        entry_of[region.boxes] = entry
    counts, least_mm2 = np.zeros(len(place_of), np.int64), np.full(len(place_of), np.inf)
    number, looked = _candidates(verification), 0
    single = number <= MOST_SINGLE_CHIPS
    for chip in _chips(verification, None if single else _sample_of(verification, number)):
        looked += 1
        rates = rates_of(certificate.study, chip)
        place = place_of.get(box_key(rates))
        require(place is not None, "the list of boxes, in which one is missing,")
        assert place is not None
        best = certificate.boxes[entry_of[place]].rates
        require(all(rates[name] <= best[name] for name in rates), "the rates of a box")
        counts[place] += 1
        area_mm2 = chip.area_under(certificate.study.spec.area.model)
        least_mm2[place] = min(least_mm2[place], area_mm2)
    if not single:
        # The arrays count all chips; the chips above are a sample.
        counts, least_mm2 = table.chips, table.least_mm2
    for region, box in zip(verification.regions, certificate.boxes, strict=True):
        require(int(counts[region.boxes].sum()) == box.chips, "the number of chips of a box")
        near = is_near(float(least_mm2[region.boxes].min()), box.least_mm2)
        require(near, "the smallest area of a box")
    points = int(counts.sum()) * sizes * len(grid.options)
    require(points == certificate.points, "the number of points")
    return Check("chips in boxes", looked, points // (sizes * len(grid.options)))


def _sample_of(verification: Verification, number: int) -> int:
    """Return how many candidates to draw, so that some hundred are allowed chips."""
    allowed = max(1, len(verification.grid.chips))
    return min(MOST_SINGLE_CHIPS, MOST_SINGLE_CHIPS // 10 * max(1, number // (100 * allowed)))


def _candidates(verification: Verification) -> int:
    """Return the number of architectures, with those above the limits."""
    searched = verification.certificate.study.spec.space.searched
    return math.prod(len(searched[name].values) for name in _chip_axes(verification))


def _chip_axes(verification: Verification) -> list[str]:
    """Return the searched axes of architectures."""
    return list(verification.grid.chips.axes)


def _chips(verification: Verification, sample: int | None) -> Iterator[Accelerator]:
    """Yield the allowed chips of a space, or of a sample of its candidates, one by one.

    Every tenth chip is also made from its point, and compared.
    """
    study, chips = verification.certificate.study, verification.grid.chips
    space, axes = study.spec.space, _chip_axes(verification)
    smallest = [int(chips.hbm_indices[0])] * len(chips.hbm_axes)
    ranges = [range(len(space.searched[name].values)) for name in axes]
    rows: Iterator[tuple[int, ...]] = product(*ranges)
    if sample is not None:
        draw = verification.generator
        rows = (tuple(draw.choice(values) for values in ranges) for _ in range(sample))
    for number, row in enumerate(rows):
        chip = chips.build([*row, *smallest])
        if number % _EVERY == 0:
            indices = dict(zip((*axes, *chips.hbm_axes), [*row, *smallest], strict=True))
            require(chip == _chip_at(study, indices), "a chip of the space")
        if chip is not None and chip_violation(study, chip) is None:
            yield chip


def _chip_at(study: ResolvedStudy, indices: dict[str, int]) -> Accelerator | None:
    """Return the chip of a point; ``None`` if there is none."""
    point = point_at(study.spec.space, {**dict.fromkeys(study.spec.space.searched, 0), **indices})
    try:
        return chip_of(study.base, point.by_name)
    except InputError:
        return None


@collected_later()
def check_bounds(verification: Verification) -> Check:
    """Bound boxes again in plain Python."""
    certificate, grid = verification.certificate, verification.grid
    boxes = certificate.boxes
    # A region may have the bounds of one that holds it.
    halved = not are_bounded_at_once(grid, verification.engine.rule)
    options = range(len(grid.options))
    cells = [(option, at) for option in options for at in range(len(boxes))]
    chosen = cells
    if len(cells) > MOST_SCALAR_CELLS:
        chosen = sorted(verification.generator.sample(cells, MOST_SCALAR_CELLS))
    for option in options:
        which = [at for cell_option, at in chosen if cell_option == option]
        for at, bounds in zip(which, _scalar_bounds(verification, option, which), strict=True):
            pairs = zip(bounds, boxes[at].bounds[option], strict=True)
            holds = [is_near(own, stated) or (halved and own < stated) for own, stated in pairs]
            require(all(holds), "a bound of a box")
        verification.scalar.forget()
    # `verifying` compares all bounds of arrays.
    return Check("bounds of boxes", len(chosen), len(cells))


def _scalar_bounds(
    verification: Verification, option: int, which: Sequence[int]
) -> Iterator[list[float]]:
    """Bound boxes under one combination of options, with every size of the HBM.

    Below the bounds that are stated, the bounds of plain Python need not be computed: a larger
    bound is found, and if it is smaller, the stated one holds too; `verifying` compares that with
    the bound of arrays.
    """
    grid, scalar, rule = verification.grid, verification.scalar, verification.engine.rule
    sizes = len(grid.chips.hbm_sizes)
    try:
        design = grid.study.design(grid.point(option, 0, 0))
    except InputError:
        # There is no such network: every evaluation is refused too.
        yield from ([0.0] * sizes for _ in which)
        return
    if not which:
        return
    boxes = BoxTree(grid.chips).corners([verification.regions[at] for at in which])
    of_rates = rule.bounded.name in RATE_OBJECTIVES
    rates = None
    if not of_rates or len(grid.study.spec.runs) > 1:
        rates = rule.rates(design, boxes)
    for at, chip in enumerate(boxes.architectures):
        bounds, rows, area_mm2 = [], range(*boxes.runs[at].tolist()), float(boxes.area_mm2[at])
        stated = verification.certificate.boxes[which[at]].bounds[option]
        for size, hbm_bytes in enumerate(boxes.hbm_bytes[:, at].tolist()):
            sized = replace(design, accelerator=replace(chip, hbm_bytes=hbm_bytes))
            known = [1.0] if rates is None else (rates[:, size, at] * (1.0 - MARGIN)).tolist()
            if of_rates:
                known = scalar.rates_below(sized, rows, area_mm2, stated[size], known)
            found = scalar.of_box(sized, rows, known)
            bounds.append(scalar.merit(sized, rows, area_mm2, found))
        yield bounds


def check_closed(verification: Verification) -> Check:
    """Check that all points of cells that stayed closed come after the top."""
    certificate, sizes = verification.certificate, verification.grid.chips.hbm_sizes
    closed, maximise = 0, verification.engine.rule.bounded.maximise
    hbm_bytes = sizes.tolist()
    for box in certificate.boxes:
        for option, bounds in enumerate(box.bounds):
            if option in box.opened:
                continue
            closed += 1
            for bound, size in zip(bounds, _hbm_of(box, hbm_bytes), strict=True):
                if bound > 0.0:
                    head = head_of(bound, size, box.least_mm2 * (1.0 - 1e-9), maximise)
                    excluded = certificate.last is not None and head > certificate.last
                    require(excluded, "that a closed box comes after the top")
    return Check("closed boxes after the top", closed, closed)


def _hbm_of(box: CertifiedBox, hbm_bytes: Sequence[int]) -> Sequence[int]:
    """Return the sizes of the HBM of a box: only its own if the rates depend on the size."""
    own = box.rates.get("hbm_bytes")
    return hbm_bytes if own is None else [int(own)]

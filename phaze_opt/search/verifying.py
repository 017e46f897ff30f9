"""Checks a certificate without believing a number of it.

Everything is computed again from the frozen study alone: that the boxes partition the chips of the
space, by looking at one chip after another; their bounds, by plain Python (`scalar_bounds`); that
closed cells come after the top; which points had to be evaluated; the designs of the top, exactly;
and a sample of the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from phaze_opt.errors import ConflictError, InputError, PhazeError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.search.axes import Scalar
from phaze_opt.search.best_first import BestFirst, BoundedPoint
from phaze_opt.search.bounding import bounds_of
from phaze_opt.search.bounds import Bounded
from phaze_opt.search.certificate import Certificate, CertifiedBox, rates_of
from phaze_opt.search.constraints import chip_violation
from phaze_opt.search.designs import chip_of
from phaze_opt.search.engine import Engine
from phaze_opt.search.freezing import capture_models
from phaze_opt.search.frozen import content_hash, current_version
from phaze_opt.search.grid import Grid
from phaze_opt.search.ordering import Rank, value_bin
from phaze_opt.search.scalar_bounds import ScalarBounds
from phaze_opt.search.space import DesignPoint, point_at
from phaze_opt.search.trials import Metrics
from phaze_opt.workload.graph import Workload

SAMPLE = 50
"""Points beside the top that are evaluated."""

MOST_SCALAR_CELLS = 2_500
"""Boxes, each under one combination of options, that plain Python bounds; of more, a sample."""

MOST_SINGLE_CHIPS = 100_000
"""Chips that are looked at one by one; of more, a sample."""

_NEAR = 1e-6
"""Relative difference of two sums, of which one is stored in single precision."""


class RefusedError(PhazeError):
    """A certificate that does not prove what it says; exit code 1."""


@dataclass(frozen=True)
class Check:
    """One thing that was checked: what, and how much of it."""

    what: str
    checked: int
    of: int


@dataclass
class _Verifier:
    """A certificate, and what computes its numbers again."""

    certificate: Certificate
    engine: Engine
    generator: random.Random

    @property
    def grid(self) -> Grid:
        """All points."""
        return self.engine.grid

    def metrics(self, point: DesignPoint) -> Metrics:
        """Evaluate a point."""
        (metrics,) = self.engine.evaluate([point])
        return metrics

    @cached_property
    def worst(self) -> Rank | None:
        """Rank of the last design of the top; ``None`` if every feasible one is of the top."""
        certificate = self.certificate
        if certificate.last is None or not certificate.top:
            return None
        point = DesignPoint(certificate.top[-1].point)
        return self.metrics(point).rank(certificate.study, point)

    @cached_property
    def in_top(self) -> set[tuple[tuple[str, Scalar], ...]]:
        """Points of the top."""
        return {one.point for one in self.certificate.top}


def check_origin(certificate: Certificate) -> tuple[Workload, ...]:
    """Return the workloads of a certificate, captured again.

    Raises
    ------
    ConflictError
        If it belongs to another version of the cost model.
    RefusedError
        If the frozen study, or a workload, is not what the certificate says.
    """
    study = certificate.study
    if study.cost_model_version != current_version():
        raise ConflictError(
            f"The certificate is of cost-model version {study.cost_model_version}, but this "
            f"program has {current_version()}."
        )
    _require(study.hash == certificate.study_hash, "the hash of the study")
    workloads = capture_models(study.spec)
    hashes = tuple(map(content_hash, workloads))
    _require(hashes == study.workload_hashes, "the hash of a captured workload")
    return workloads


def verify(
    certificate: Certificate,
    engine: Engine,
    on_check: Callable[[Check], None] = lambda check: None,
) -> list[Check]:
    """Check a certificate.

    Parameters
    ----------
    certificate
        As read.
    engine
        Of its study, with an empty database, so that no stored number is used.
    on_check
        Called after every check.

    Raises
    ------
    RefusedError
        Naming what is not as the certificate says.
    """
    verifier = _Verifier(certificate, engine, random.Random(certificate.checksum))
    done = []
    for check in (_partition, _box_bounds, _closed_cells, _top, _due, _sample):
        done.append(check(verifier))
        on_check(done[-1])
    return done


def _require(true: bool, what: str) -> None:
    """Refuse the certificate unless something is true."""
    if not true:
        raise RefusedError(f"The certificate is refused: {what} is not what it says.")


def _partition(verifier: _Verifier) -> Check:
    """Put one chip after another into its box, and count."""
    certificate, grid = verifier.certificate, verifier.grid
    boxes = {_key(box.rates): box for box in certificate.boxes}
    _require(len(boxes) == len(certificate.boxes), "a box that is there once")
    _require(list(certificate.options) == list(grid.options), "the list of options")
    sizes = len(grid.chips.hbm_bytes)
    shapes = {tuple(map(len, box.bounds)) for box in certificate.boxes}
    _require(shapes <= {(sizes,) * len(grid.options)}, "the number of bounds of a box")
    counts = dict.fromkeys(boxes, 0)
    least_mm2 = dict.fromkeys(boxes, float("inf"))
    number = _candidates(verifier)
    single = number <= MOST_SINGLE_CHIPS
    looked = 0
    for chip in _chips(verifier, None if single else MOST_SINGLE_CHIPS // 10):
        looked += 1
        key = _key(rates_of(certificate.study, chip))
        _require(key in boxes, "the list of boxes, in which one is missing,")
        counts[key] += 1
        area_mm2 = chip.area_under(certificate.study.spec.area.model)
        least_mm2[key] = min(least_mm2[key], area_mm2)
    if not single:
        # All of them by arrays, of which the chips above are a sample.
        counts, least_mm2 = _by_arrays(verifier)
    for key, box in boxes.items():
        _require(counts[key] == box.chips, "the number of chips of a box")
        _require(_is_near(least_mm2[key], box.least_mm2), "the smallest area of a box")
    _require(set(counts) == set(boxes), "the list of boxes")
    points = sum(counts.values()) * sizes * len(grid.options)
    _require(points == certificate.points, "the number of points")
    return Check("chips in boxes", looked, points // (sizes * len(grid.options)))


def _by_arrays(verifier: _Verifier) -> tuple[dict[_Key, int], dict[_Key, float]]:
    """Count the chips of all boxes, and their smallest areas, with the arrays of the search."""
    chips, study = verifier.grid.chips, verifier.certificate.study
    counts: dict[_Key, int] = {}
    least_mm2: dict[_Key, float] = {}
    for begin, end in zip(chips.first[:-1].tolist(), chips.first[1:].tolist(), strict=True):
        key = _key(rates_of(study, chips.architecture(begin)))
        counts[key] = end - begin
        least_mm2[key] = float(chips.area_mm2[begin:end].min())
    return counts, least_mm2


def _candidates(verifier: _Verifier) -> int:
    """Return the number of architectures, those above the limits included."""
    number = 1
    for name in _chip_axes(verifier):
        number *= len(verifier.certificate.study.spec.space.searched[name].values)
    return number


def _chip_axes(verifier: _Verifier) -> list[str]:
    """Return the searched axes of architectures."""
    chips = verifier.grid.chips
    return list(chips.names[: chips.indices.shape[1]])


def _chips(verifier: _Verifier, sample: int | None) -> Iterator[Accelerator]:
    """Yield the allowed chips of a space, or of a sample of its candidates, one by one."""
    study, chips = verifier.certificate.study, verifier.grid.chips
    space, axes = study.spec.space, _chip_axes(verifier)
    smallest = dict.fromkeys(space.searched, 0)
    for name in chips.names[len(axes) :]:
        smallest[name] = int(chips.hbm_indices[0])
    ranges = [range(len(space.searched[name].values)) for name in axes]
    rows: Iterator[tuple[int, ...]] = product(*ranges)
    if sample is not None:
        draw = verifier.generator
        rows = (tuple(draw.choice(values) for values in ranges) for _ in range(sample))
    for row in rows:
        point = point_at(space, {**smallest, **dict(zip(axes, row, strict=True))})
        try:
            chip = chip_of(study.base, point.by_name)
        except InputError:
            continue
        if chip_violation(study, chip) is None:
            yield chip


_Key = tuple[tuple[str, float], ...]


def _key(rates: object) -> _Key:
    """Return the rates of a box as a key."""
    assert isinstance(rates, dict)
    return tuple(sorted(rates.items()))


def _box_bounds(verifier: _Verifier) -> Check:
    """Bound boxes again in plain Python."""
    certificate, grid, rule = verifier.certificate, verifier.grid, verifier.engine.rule
    scalar = ScalarBounds(certificate.study, rule.workloads, rule.reference)
    chips = grid.chips
    boxes = Bounded.boxes(chips)
    of_keys = {_key(box.rates): box for box in certificate.boxes}
    listed = [
        of_keys[_key(rates_of(certificate.study, boxes.architectures[at]))]
        for at in range(len(boxes.architectures))
    ]
    cells = [(option, at) for option in range(len(grid.options)) for at in range(len(listed))]
    chosen = cells
    if len(cells) > MOST_SCALAR_CELLS:
        chosen = sorted(verifier.generator.sample(cells, MOST_SCALAR_CELLS))
        for option in range(len(grid.options)):
            found = bounds_of(grid, rule, option, boxes)
            for at, box in enumerate(listed):
                _require_near(found[:, at].tolist(), box.bounds[option])
    for option in range(len(grid.options)):
        which = np.array([at for of, at in chosen if of == option], dtype=np.int64)
        if len(which) > 0:
            found = bounds_of(grid, scalar, option, boxes.some(which))
            for at, column in zip(which.tolist(), found.T.tolist(), strict=True):
                _require_near(column, listed[at].bounds[option])
    return Check("bounds of boxes", len(chosen), len(cells))


def _require_near(found: Sequence[float], stated: Sequence[float]) -> None:
    near = all(_is_near(one, other) for one, other in zip(found, stated, strict=True))
    _require(near, "a bound of a box")


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _NEAR * abs(one)


def _closed_cells(verifier: _Verifier) -> Check:
    """Check that all points of cells that stayed closed come after the top."""
    certificate, sizes = verifier.certificate, verifier.grid.chips.hbm_bytes
    closed = 0
    hbm_bytes = [int(size) for size in sizes[:, 0]] if sizes.size else []
    for box in certificate.boxes:
        for option, bounds in enumerate(box.bounds):
            if option in box.opened:
                continue
            closed += 1
            for bound, size in zip(bounds, _hbm_of(box, hbm_bytes), strict=True):
                if bound > 0.0:
                    head = -float(value_bin(bound)), size, box.least_mm2 * (1.0 - 1e-9)
                    excluded = certificate.last is not None and head > certificate.last
                    _require(excluded, "that a closed box comes after the top")
    return Check("closed boxes after the top", closed, closed)


def _hbm_of(box: CertifiedBox, hbm_bytes: Sequence[int]) -> Sequence[int]:
    """Return the sizes of the HBM of a box: its own, where more follows from the size."""
    own = box.rates.get("hbm_bytes")
    return hbm_bytes if own is None else [int(own)]


def _top(verifier: _Verifier) -> Check:
    """Evaluate the designs of the top again."""
    certificate, ranks = verifier.certificate, []
    for one in certificate.top:
        point = DesignPoint(one.point)
        metrics = verifier.metrics(point)
        same = metrics.feasible and metrics.values == one.values
        _require(same and metrics.area_mm2 == one.area_mm2, "the value of a design of the top")
        ranks.append(metrics.rank(certificate.study, point))
    keys = [rank.key for rank in ranks]
    _require(keys == sorted(keys), "the order of the top")
    _require(
        len({one.point for one in certificate.top}) == len(keys), "a design that is there once"
    )
    full = len(keys) == certificate.asked
    _require(len(keys) <= certificate.asked, "the size of the top")
    last = tuple(keys[-1][:3]) if full and keys else None
    stated = None if certificate.last is None else tuple(certificate.last)
    _require(last == stated, "the last key of the top")
    return Check("designs of the top", len(keys), len(keys))


def _due(verifier: _Verifier) -> Check:
    """Find the points that had to be evaluated, and evaluate a sample of those beside the top."""
    certificate, study = verifier.certificate, verifier.certificate.study
    order = BestFirst(verifier.grid, verifier.engine.rule)
    due: list[BoundedPoint] = []
    batches = None
    for one in order:
        if certificate.last is not None and one.head > certificate.last:
            batches = one.batches
            break
        due.append(one)
    batches = order.batches if batches is None else batches
    cells, chips = order.cells, verifier.grid.chips
    opened = {(option, _key(box.rates)) for box in certificate.boxes for option in box.opened}
    firsts = [int(chips.first[box]) for box in cells.box[: order.cells_of(batches)]]
    needed = {
        (int(option), _key(rates_of(study, chips.architecture(first))))
        for option, first in zip(cells.option, firsts, strict=False)
    }
    _require(needed == opened, "the list of opened boxes")
    _require(order.infeasible(batches) == certificate.infeasible_proven, "what fits no memory")
    # Some more were evaluated before the top was full.
    _require(len(due) <= certificate.evaluated, "the number of points that were evaluated")
    _require(certificate.bounded + certificate.evaluated == certificate.points, "the sum of points")
    _require(certificate.feasible <= certificate.evaluated, "the number of feasible points")
    _require(verifier.in_top <= {one.point.values for one in due}, "that the top was due")
    others = [one for one in due if one.point.values not in verifier.in_top]
    sample = verifier.generator.sample(others, min(SAMPLE, len(others)))
    for one in sample:
        _below(verifier, one.point, one.bound)
    return Check("evaluated points beside the top", len(sample), len(others))


def _sample(verifier: _Verifier) -> Check:
    """Evaluate points of the whole space: none is better than its bound, or of the top."""
    grid = verifier.grid
    count = min(SAMPLE, grid.points)
    for place in verifier.generator.sample(range(grid.points), count):
        option, size, row = (int(at) for at in np.unravel_index(place, grid.shape))
        some = Bounded.of(grid.chips, np.array([row]))
        bounds = bounds_of(grid, verifier.engine.rule, option, some)
        _below(verifier, grid.point(option, size, row), float(bounds[size, 0]))
    return Check("points of the whole space", count, grid.points)


def _below(verifier: _Verifier, point: DesignPoint, bound: float) -> None:
    """Check that a point is no better than its bound, and of the top or after it."""
    metrics = verifier.metrics(point)
    if not metrics.feasible:
        return
    _require(metrics.value <= bound, "a bound, which a design exceeds,")
    if point.values in verifier.in_top:
        return
    after = verifier.worst is not None
    if verifier.worst is not None:
        after = metrics.rank(verifier.certificate.study, point).key > verifier.worst.key
    _require(after, "that a design is not of the top")

"""The state that all checks of a certificate share, and the refusal of a certificate."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.bounds.best_first import BestFirst
from phaze_opt.bounds.box_order import are_bounded_at_once
from phaze_opt.bounds.box_tree import BoxTree, Region
from phaze_opt.bounds.point_grid import Place, PointGrid
from phaze_opt.errors import PhazeError
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.ordering import Rank
from phaze_opt.spec.space import DesignPoint
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.certificate import Certificate, certify
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.exhaustive import enumerate_space
from phaze_opt.whole_space.pools import LocalPool, Task
from phaze_opt.whole_space.scalar_bounds import ScalarBounds

BoxKey = tuple[tuple[str, float], ...]
"""Rates of a box, sorted by name."""

_NEAR = 1e-6
"""Largest relative difference of two equal sums, one of them stored in single precision."""


class RefusedError(PhazeError):
    """A certificate with a wrong claim; exit code 1."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes
    ----------
    what
        Items of the check, for people.
    checked, of
        Number of checked items, and of all items.
    """

    what: str
    checked: int
    of: int


_PARTITION = "the list of boxes, which take every chip once,"


def require(true: bool, what: str) -> None:
    """Refuse the certificate unless a claim is true.

    Parameters
    ----------
    what
        The claim, as subject of the error's sentence.

    Raises
    ------
    RefusedError
        If the claim is wrong.
    """
    if not true:
        raise RefusedError(f"The certificate is refused: {what} is not what it says.")


def is_near(first: float, second: float) -> bool:
    """Whether two numbers are equal but for rounding."""
    return abs(first - second) <= _NEAR * abs(first)


class _Recorder(LocalPool):
    """A pool that keeps the metrics of every evaluated point, by the values of the point.

    All solved options are evaluated: no bound that is to be checked leaves one out.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.evaluated: dict[tuple[tuple[str, Scalar], ...], Metrics] = {}

    def evaluate(
        self, points: Sequence[DesignPoint], places: Sequence[Place] = ()
    ) -> Task[list[Metrics]]:
        """Evaluate points at once."""
        results = super().evaluate(points).result()
        by_point = zip(points, results, strict=True)
        self.evaluated |= {point.values: metrics for point, metrics in by_point}
        return Task(lambda: results)


class Enumerated(NamedTuple):
    """The certificate of an enumeration, and the metrics of its evaluated points."""

    certificate: Certificate
    evaluated: Mapping[tuple[tuple[str, Scalar], ...], Metrics]


def enumerated_by(engine: Engine, store: BoundStore | None, asked: int) -> Enumerated:
    """Enumerate a whole space, and certify what was found.

    Parameters
    ----------
    engine, store
        See `Verification`.
    asked
        Size of the top.

    Raises
    ------
    InputError
        If no bound is known for the objective, or the space is too large.
    """
    recorder = _Recorder(engine)
    enumeration = enumerate_space(engine, store, top=asked, pool=recorder)
    assert enumeration is not None
    order = BestFirst(engine.grid, engine.rule, store)
    return Enumerated(certify(order, enumeration, asked), recorder.evaluated)


@dataclass
class Verification:
    """A certificate, with the engine that computes its numbers again.

    Attributes
    ----------
    certificate
        The certificate as its file states it.
    engine
        Engine of its study, with an empty database, so that no stored number is used.
    store
        Stores the bounds of arrays during the checks; ``None`` to store none.
    found
        The enumeration that the certificate is of, where that was just made with this engine;
        ``None`` to enumerate a second time.
    generator
        Draws the samples; its seed is the checksum of the certificate.
    """

    certificate: Certificate
    engine: Engine
    store: BoundStore | None
    found: Enumerated | None = None
    generator: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.certificate.checksum)

    @property
    def grid(self) -> PointGrid:
        """All points."""
        return self.engine.grid

    @cached_property
    def regions(self) -> list[Region]:
        """The boxes that each entry of the certificate stands for.

        They follow from halving the space again, which takes every box once.

        Raises
        ------
        RefusedError
            If some entry is no region, or some region has no entry.
        """
        chips, entries = self.grid.chips, self.certificate.boxes
        tree = BoxTree(chips)
        left = tree.roots(alone=are_bounded_at_once(self.grid, self.engine.rule))[::-1]
        found: list[Region] = []
        while left:
            region = left.pop()
            require(len(found) < len(entries), _PARTITION)
            entry = entries[len(found)]
            if entry.chips == tree.chips_of(region) and entry.rates == tree.corner(region):
                found.append(region)
            else:
                require(len(region.boxes) > 1, _PARTITION)
                left += tree.halves(region)[::-1]
        require(len(found) == len(entries), _PARTITION)
        return found

    @cached_property
    def scalar(self) -> ScalarBounds:
        """Bounds in plain Python."""
        return ScalarBounds(self.engine.rule, self.grid.chips)

    def metrics(self, point: DesignPoint) -> Metrics:
        """Evaluate a point."""
        (metrics,) = self.engine.evaluate([point])
        return metrics

    @cached_property
    def again(self) -> Enumerated:
        """A second enumeration, by the arrays that made this certificate; or ``found``."""
        return self.found or enumerated_by(self.engine, self.store, self.certificate.asked)

    @cached_property
    def worst(self) -> Rank | None:
        """Rank of the last design of the top; ``None`` if the top holds all feasible designs."""
        certificate = self.certificate
        if certificate.last is None or not certificate.top:
            return None
        point = DesignPoint(certificate.top[-1].point)
        return self.metrics(point).rank(certificate.study, point)

    @cached_property
    def in_top(self) -> set[tuple[tuple[str, Scalar], ...]]:
        """Points of the top."""
        return {design.point for design in self.certificate.top}

    @cached_property
    def chip(self) -> Callable[[int, int], Accelerator]:
        """Function of an architecture and a size of the HBM that makes a chip, once per pair."""
        chips = self.grid.chips

        def make(row: int, hbm_bytes: int) -> Accelerator:
            return replace(chips.architecture(row), hbm_bytes=hbm_bytes)

        return lru_cache(maxsize=2**14)(make)

    @cached_property
    def keys(self) -> list[BoxKey]:
        """The keys of all boxes, in their order."""
        rates = self.grid.chips.table.rates
        columns = np.stack(list(rates.values()), axis=1).tolist()
        return [box_key(dict(zip(rates, own, strict=True))) for own in columns]

    def merit(self, metrics: Metrics) -> float:
        """Return the merit of an evaluated design."""
        return self.engine.rule.bounded.merit(metrics.value)

    def below(self, point: DesignPoint, bound: float) -> None:
        """Check that a point is no better than its bound, and is in the top or comes after it."""
        metrics = self.metrics(point)
        if not metrics.feasible:
            return
        require(self.merit(metrics) <= bound, "a bound, which a design exceeds,")
        if point.values in self.in_top:
            return
        after = self.worst is not None
        if self.worst is not None:
            after = metrics.rank(self.certificate.study, point).key > self.worst.key
        require(after, "that a design is not of the top")


def box_key(rates: Mapping[str, float]) -> BoxKey:
    """Return the rates of a box as a key."""
    return tuple(sorted(rates.items()))

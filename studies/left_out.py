"""Designs that no search looked at, drawn at random and evaluated: a winner must be better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.bounds.bounding import SpacePart, bound_parts
from phaze_opt.spec.space import DesignPoint
from phaze_opt.whole_space.engine import Engine


@dataclass(frozen=True)
class LeftOut:
    """What random designs of a space reach.

    Attributes
    ----------
    designs, feasible
        How many were evaluated, all within the limits of the chip; those that violate no other one.
    better
        Those that stand before the last known one in the order of designs.
    above
        Those that are better than their bound.
    best
        Objective of the best relative to that of the first known one; 0 where none is feasible.
    """

    designs: int
    feasible: int
    better: int
    above: int
    best: float


def left_out(engine: Engine, known: Sequence[DesignPoint], designs: int, seed: int = 0) -> LeftOut:
    """Evaluate random designs of a space.

    Parameters
    ----------
    engine
        Of the study.
    known
        The best designs, the first one first; none of them is drawn.
    designs
        How many are drawn, all different and each as probable as any other; no more than there are.
    seed
        Of the draw.
    """
    study, kind = engine.objective.study, engine.rule.bounded
    first, *_, last = engine.evaluate([known[0], known[-1]])
    worst = last.rank(study, known[-1]).key
    feasible, better, above, best = 0, 0, 0, 0.0
    places = _drawn(engine, known, designs, seed)
    for option, size, row in places:
        point = engine.grid.point(option, size, row)
        (metrics,) = engine.evaluate([point])
        if not metrics.feasible:
            continue
        (bounds,) = bound_parts(engine.grid, engine.rule, [SpacePart(option, ((row, row + 1),))])
        feasible += 1
        above += bool(kind.merit(metrics.value) > bounds[size, 0])
        better += metrics.rank(study, point).key < worst
        best = max(best, metrics.value / first.value)
    return LeftOut(len(places), feasible, better, above, best)


def _drawn(
    engine: Engine, known: Sequence[DesignPoint], designs: int, seed: int
) -> list[tuple[int, int, int]]:
    """Draw different points of a space: option, size of the HBM and architecture of each."""
    grid, random = engine.grid, np.random.default_rng(seed)
    count = min(designs + len(known), grid.points)
    numbers = random.choice(grid.points, size=count, replace=False, shuffle=False)
    options, sizes, rows = (each.tolist() for each in np.unravel_index(numbers, grid.shape))
    places = zip(options, sizes, rows, strict=True)
    return [place for place in places if grid.point(*place) not in known][:designs]

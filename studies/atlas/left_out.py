"""Designs that no search looked at, drawn at random and evaluated: a winner must be better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.whole_space.engine import Engine
from studies.atlas.markdown import table
from studies.paper.searches import study_in
from studies.work import Work

DESIGNS = 1000
SEED = 0


@dataclass(frozen=True)
class LeftOut:
    """What random designs of a space reach.

    Attributes
    ----------
    designs, infeasible
        How many were evaluated, all within the limits of the chip; those that violate another one.
    better
        Those that stand before the winner in the order of designs.
    best
        Throughput of the fastest relative to the winner's; 0 where none is feasible.
    """

    designs: int
    infeasible: int
    better: int
    best: float


def left_out(
    work: Work, spec: StudySpec, values: Mapping[str, Scalar], designs: int = DESIGNS
) -> LeftOut:
    """Evaluate random designs of a space, unless that was done.

    Parameters
    ----------
    work
        Of the run; its database keeps the evaluations.
    values
        Of the winner, on the axes.
    designs
        How many are drawn, all different; no more than there are, but for the winner.
    """

    def found() -> LeftOut:
        study = study_in(work, spec)
        engine = Engine(study, study.evaluator)
        winner = DesignPoint(
            tuple((name, values[name]) for name in spec.space.axes if name in values)
        )
        points = _drawn(engine, winner, designs)
        first, *others = engine.evaluate([winner, *points])
        rank = first.rank(study.resolved, winner).key
        ranks = [
            (metrics.rank(study.resolved, point).key, metrics.value / first.value)
            for point, metrics in zip(points, others, strict=True)
            if metrics.feasible
        ]
        return LeftOut(
            designs=len(points),
            infeasible=len(points) - len(ranks),
            better=sum(own < rank for own, _ in ranks),
            best=max((relative for _, relative in ranks), default=0.0),
        )

    return work.answer(f"left-out-{spec.name}", [spec, values, designs], LeftOut, found)


def _drawn(engine: Engine, winner: DesignPoint, designs: int) -> list[DesignPoint]:
    """Draw different points of a space, each as probable as any other."""
    grid, random = engine.grid, np.random.default_rng(SEED)
    numbers = random.choice(grid.points, size=min(designs + 1, grid.points), replace=False)
    places = zip(*np.unravel_index(numbers, grid.shape), strict=True)
    points = [grid.point(*map(int, place)) for place in places]
    return [point for point in points if point != winner][:designs]


def left_out_lines(found: Mapping[str, LeftOut]) -> Iterator[str]:
    """Yield the section of the page.

    Parameters
    ----------
    found
        By the words of the question.
    """
    yield "## Designs that were left out"
    yield ""
    yield (
        "Bounds exclude nearly all designs of a space. So many of them, drawn at random, were "
        "evaluated all the same; none of them may be better than the winner."
    )
    yield ""
    head = ("model", "designs", "infeasible", "better than the winner", "the fastest, relative")
    rows = [
        [words, f"{own.designs:,}", f"{own.infeasible:,}", str(own.better), f"{own.best:.3f}"]
        for words, own in found.items()
    ]
    yield from table(head, rows)

"""Statements of a winner, and its steps: what one step on an axis brings where one fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from phaze_opt.spec.ordering import VALUE_BIN
from phaze_opt.spec.space import DesignPoint
from phaze_opt.study.neighbourhood import points_around
from phaze_opt.study.trials import Metrics
from phaze_opt.units import format_number
from phaze_opt.whole_space.engine import Engine

_LEAST_LOSS = 1e-6
"""Relative; what loses less loses nothing."""


@dataclass(frozen=True)
class Statement:
    """One thing that must be so for a winner to be believed.

    Attributes
    ----------
    what
        The figure, with its unit.
    low, high
        Within which it must lie, both included.
    source
        Of the limits.
    why_not
        What is the matter; empty where it holds.
    has_reason
        Whether it stays so for a reason, see `with_step`.
    """

    what: str
    figure: float
    low: float
    high: float
    source: str
    why_not: str = ""
    has_reason: bool = False


@dataclass(frozen=True)
class Step:
    """One step on one axis, all else kept; placed again.

    Attributes
    ----------
    words
        Where it leads, and what comes of it.
    faster
        Its value over the winner's; 0 where there is no such design.
    larger
        Its area over the winner's; 0 where there is no such design.
    pays
        Whether the order of designs has it before the winner, which no step may be.
    """

    axis: str
    up: bool
    words: str
    faster: float = 0.0
    larger: float = 0.0
    pays: bool = False


def stated(what: str, figure: float, low: float, high: float, source: str) -> Statement:
    """Return a statement of a figure that must lie between two others."""
    why_not = ""
    if figure < low:
        why_not = f"{format_number(figure)} is below {format_number(low)}"
    if figure > high:
        why_not = f"{format_number(figure)} is above {format_number(high)}"
    return Statement(what, figure, low, high, source, why_not)


def with_step(
    statement: Statement, steps: Sequence[Step], axis: str, *, up: bool = False, loss: float = 0.0
) -> Statement:
    """Add to what is the matter, if anything is, what a step that would mend it brings.

    It is a reason to stay that such a step loses, takes area and brings nothing, or does not exist.

    Parameters
    ----------
    statement, steps
        Of a design.
    axis, up
        Of the step.
    loss
        What the design would lose without what the statement is of, relative: however small, it
        is a reason where no step on another axis makes more of its area.
    """
    if not statement.why_not:
        return statement
    way = f"a step of {axis} {'up' if up else 'down'}"
    found = [step for step in steps if (step.axis, step.up) == (axis, up)]
    reason = f"{way}, {found[0].words}" if found else f"{axis} has no step"
    needed = loss > _LEAST_LOSS and not any(step.pays for step in steps)
    return replace(
        statement,
        why_not=f"{statement.why_not}; {reason}",
        has_reason=needed or any(map(_is_no_way_back, found)),
    )


def _is_no_way_back(step: Step) -> bool:
    """Whether a step loses, costs area and brings nothing, or does not exist."""
    brings_nothing = step.faster <= 1.0 + VALUE_BIN
    return step.faster < 1.0 - VALUE_BIN or (brings_nothing and step.larger > 1.0)


def steps_from(engine: Engine, point: DesignPoint, winner: Metrics) -> Iterator[Step]:
    """Take a step up and down on every axis."""
    study = engine.objective.study
    first = winner.rank(study, point).key
    for axis, up, there in points_around(study.spec.space, point):
        if there is None:
            yield Step(axis, up, "the axis ends")
            continue
        (metrics,) = engine.evaluate([there])
        if not metrics.feasible:
            yield Step(axis, up, f"{there[axis]}: infeasible ({metrics.limit})")
            continue
        faster = metrics.value / winner.value
        larger = (metrics.area_mm2 or 0.0) / (winner.area_mm2 or 1.0)
        words = f"{there[axis]}: {faster:.3f} × at {larger:.3f} × the area"
        yield Step(axis, up, words, faster, larger, pays=metrics.rank(study, there).key < first)


def no_step_pays(steps: Sequence[Step]) -> Statement:
    """State that every step loses, costs, or is not allowed."""
    paying = [f"{step.axis} {'up' if step.up else 'down'}" for step in steps if step.pays]
    what = "steps of one axis that pay"
    statement = stated(what, float(len(paying)), 0.0, 0.0, f"{len(steps)} steps")
    return replace(statement, why_not=f"{', '.join(paying)} pay" if paying else "")

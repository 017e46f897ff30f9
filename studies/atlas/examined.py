"""Random designs that the searches of the atlas left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.whole_space.engine import Engine
from studies.atlas.markdown import table
from studies.left_out import LeftOut, left_out
from studies.paper.searches import study_in
from studies.work import Work

DESIGNS = 1000


def examine(
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
        How many are drawn.
    """

    def found() -> LeftOut:
        study = study_in(work, spec)
        axes = (name for name in spec.space.axes if name in values)
        winner = DesignPoint(tuple((name, values[name]) for name in axes))
        return left_out(Engine(study, study.evaluator), [winner], designs)

    return work.answer(f"left-out-{spec.name}", [spec, values, designs], LeftOut, found)


def examined_lines(found: Mapping[str, LeftOut]) -> Iterator[str]:
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
        "evaluated all the same: none may be better than the winner, nor than its own bound."
    )
    yield ""
    head = ("model", "designs", "feasible", "better than the winner", "above their bound")
    rows = [
        [
            words,
            *map(str, (own.designs, own.feasible, own.better, own.above)),
            f"{own.best:.3f}",
        ]
        for words, own in found.items()
    ]
    yield from table((*head, "the best, relative"), rows)

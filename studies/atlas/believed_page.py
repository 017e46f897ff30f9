"""The section of the page that says whether winners can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from phaze_opt.units import format_number
from studies.atlas.believable import Believed
from studies.atlas.markdown import table
from studies.atlas.steps import Statement


def believed_summary(believed: Sequence[Believed]) -> str:
    """Say how many winners are believed in everything, and what the others fail most often."""
    failing = Counter(own.what for each in believed for own in each.unexplained)
    passing = sum(not each.unexplained for each in believed)
    inside = sum(not each.failing for each in believed)
    words = f"{passing} of {len(believed)} winners pass the list of what was built and measured, "
    words += f"{inside} of them in every figure, the others with a reason for each that is not"
    others = [f"{number} fail in {what}" for what, number in failing.most_common()]
    return f"{'; '.join([words, *others])}."


def believed_lines(believed: Sequence[Believed], detailed: Container[str]) -> Iterator[str]:
    """Yield the section of the page.

    Parameters
    ----------
    believed
        Of all winners: one row each, with what does not hold.
    detailed
        Words of the questions with all statements and steps.
    """
    yield "## Can the winners be believed?"
    yield ""
    yield (
        "Limits are the extremes of chips with an HBM that were built in the same process or a "
        "newer one, and the highest utilisation that a published run of such a model reached. "
        "Where a figure lies outside, its row says what a step back would bring: that the step "
        "loses, takes area and brings nothing, or that the space does not allow it, is a reason to "
        "stay outside; so is that half of something loses a little, and no step on another axis "
        "makes more of its area. Others stand in italics. A step keeps all other axes, and is "
        "placed again. Utilisation is that of the FLOPs that causal masks leave."
    )
    yield ""
    outside = [
        [each.words, _held(each), "; ".join(map(_outside, each.failing))] for each in believed
    ]
    yield from table(("question", "hold", "outside, and why it stays so"), outside)
    for each in believed:
        if each.words not in detailed:
            continue
        yield ""
        yield f"### {each.words}: {_held(each)} hold"
        yield ""
        rows = [
            [
                own.what,
                *map(format_number, (own.figure, own.low, own.high)),
                own.source,
                own.why_not,
            ]
            for own in each.statements
        ]
        yield from table(("figure", "winner", "from", "to", "limits", "outside"), rows)
        yield ""
        steps = {(step.axis, step.up): step.words for step in each.steps}
        ways = [[axis, steps[axis, False], steps[axis, True]] for axis, up in steps if up]
        yield from table(("axis", "a step down", "a step up"), ways)


def _outside(statement: Statement) -> str:
    """Return why a statement does not hold, in italics where there is no reason for it."""
    mark = "" if statement.has_reason else "*"
    return f"{mark}{statement.what}: {statement.why_not}{mark}"


def _held(believed: Believed) -> str:
    """Return how many statements hold."""
    return f"{len(believed.statements) - len(believed.failing)} of {len(believed.statements)}"

"""The page of the atlas: what a reader asks first comes first, and every figure is an answer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phaze_opt.evaluation import COST_MODEL_VERSION
from studies.atlas.answers import Answer, Common
from studies.atlas.believed_page import believed_lines, believed_summary
from studies.atlas.examined import examined_lines
from studies.atlas.markdown import table
from studies.atlas.parts import PARTS, common_lines
from studies.atlas.questions import Question
from studies.atlas.ratios import (
    CHIP_AXES,
    base_of,
    is_optimum,
    proof_words,
    relative,
    relative_words,
    times_base,
)
from studies.atlas.robustness import NEAR, robust_lines
from studies.atlas.scheduling import schedules_lines


def page(
    answers: Sequence[Answer],
    common: Sequence[Common] = (),
    left: Sequence[Question] = (),
    spent_s: tuple[float, float] = (0.0, 0.0),
) -> str:
    """Return the page.

    Parameters
    ----------
    answers
        In the order of the questions.
    common
        Chips for many models; none where that is not asked.
    left
        What was asked, and is not answered.
    spent_s
        Processor seconds of all answers, and of the checks of certificates.
    """
    of_part: dict[str, list[Answer]] = {}
    for answer in answers:
        of_part.setdefault(answer.question.part, []).append(answer)
    lines = ["# What should train the models of 2026?", "", *_first(answers), ""]
    if left:
        names = ", ".join(f"`{question.spec.name}`" for question in left)
        lines += [f"Not answered yet, {len(left)} of {len(answers) + len(left)}: {names}.", ""]
    for part, write in PARTS.items():
        if part in of_part:
            lines += [*write(of_part[part], answers), ""]
        if part == "models" and common:
            lines += [*common_lines(common, of_part[part]), ""]
    return "\n".join([*lines, *_of_models(answers), *_proofs(answers, spent_s), ""])


def _of_models(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the sections behind the parts: what is looked at for some answers only."""
    if firsts := [answer for answer in answers if answer.chip_first is not None]:
        yield from [*_joint(firsts), ""]
    if scheduled := {each.question.words: each.scheduled for each in answers if each.scheduled}:
        yield from [*schedules_lines(scheduled), ""]
    if robust := {each.question.words: each.robust for each in answers if each.robust}:
        yield from [*robust_lines(robust), ""]
    if any(answer.question.part in ("variants", "devices") for answer in answers):
        yield from [*_changing(answers), ""]
    if believed := [answer.believed for answer in answers if answer.believed]:
        models = {each.question.words for each in answers if each.question.part == "models"}
        yield from [*believed_lines(believed, models), ""]
    if examined := {each.question.words: each.examined for each in answers if each.examined}:
        yield from [*examined_lines(examined), ""]


def _joint(firsts: Sequence[Answer]) -> Iterator[str]:
    """Yield what it costs to choose the chip before its placement, everywhere that was asked."""
    yield "## Where chip and placement belong together"
    yield ""
    yield (
        "The chip that trains fastest alone (one device that holds the whole model, no network), "
        "placed afterwards, over the joint optimum of the same question; the most that is lost "
        "comes first."
    )
    yield ""
    ordered = sorted(firsts, key=lambda each: relative(each.chip_first, each))
    rows = (
        [each.question.words, relative_words(each.chip_first, each), proof_words(each)]
        for each in ordered
    )
    yield from table(("question", "chip first", "joint optimum"), rows)


def _changing(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield for which questions the best chip is another one, and which constants matter most."""
    yield "## What would change the conclusions"
    yield ""
    moved = [
        (_other_axes(answer, base_of(answer, answers)), answer)
        for answer in answers
        if answer.question.part in ("devices", "variants")
    ]
    stays = [answer.question.words for axes, answer in moved if not axes]
    yield f"The best chip stays the same in {len(stays)} of {len(moved)} cases:"
    yield ""
    yield f"- stays: {'; '.join(stays) or 'none'}"
    for axes, answer in moved:
        if axes:
            times = f"× {times_base(answer, answers):.3f}"
            yield f"- {answer.question.words}: {', '.join(axes)}, {times}"
    for answer in answers:
        if answer.robust is not None:
            most = sorted(answer.robust.matters.items(), key=lambda each: -abs(each[1]))[:3]
            constants = ", ".join(f"{name.replace('_', ' ')} ({rho:+.2f})" for name, rho in most)
            yield (
                f"- {answer.question.words}: the regret of the winner goes most with {constants}; "
                f"the winner stays within {NEAR[-1]:.0%} of the best in "
                f"{answer.robust.near[-1]:.0%} of {answer.robust.draws} draws"
            )


def _other_axes(answer: Answer, base: Answer) -> list[str]:
    """Return what is otherwise in the chip of an answer than in the one that it is set against."""
    own, before = answer.proven.values, base.proven.values
    return [
        f"{name} {before[name]} → {own[name]}" for name in CHIP_AXES if own[name] != before[name]
    ]


def _first(answers: Sequence[Answer]) -> Iterator[str]:
    """Yield what it comes to."""
    models = [answer for answer in answers if answer.question.part == "models"]
    reached = {answer.question.words: relative(answer.known[0], answer) for answer in models}
    fitting = {words: 1.0 / own for words, own in reached.items() if own > 0.0}
    certified = sum(map(is_optimum, answers))
    gaps = [each.proven.gap for each in answers if not is_optimum(each)]
    known = [gap for gap in gaps if gap is not None]
    rest = ""
    if known:
        rest = f"; a limit of time ended {len(known)} searches, whose bounds are at most "
        rest += f"{max(known):.1%} above what was found"
    if None in gaps:
        rest += f"; {gaps.count(None)} have no bound yet"
    yield (
        f"{certified} of {len(answers)} optima are certified: no other design of the space is "
        f"better, for this model of costs{rest}. How well a model learns in fewer bits is not "
        f"modelled, and no chip of the spaces has been built. Cost model {COST_MODEL_VERSION}; "
        "written by `make atlas`."
    )
    believed = [answer.believed for answer in answers if answer.believed is not None]
    if believed:
        yield ""
        yield believed_summary(believed)
    if fitting:
        least, most = (choose(fitting, key=fitting.__getitem__) for choose in (min, max))
        yield ""
        yield (
            f"**Within the area of an H100, the best chip trains {fitting[least]:.2f} ({least}) to "
            f"{fitting[most]:.2f} ({most}) times as fast as the H100 itself**, both at their best "
            "placement and options on the same network."
        )
    firsts = [answer for answer in models if answer.chip_first is not None]
    if firsts:
        yield ""
        yield (
            "Choosing the chip alone and placing afterwards reaches "
            + ", ".join(
                f"{relative_words(answer.chip_first, answer)} ({answer.question.words})"
                for answer in firsts
            )
            + " of the joint optimum."
        )
        worst = min(
            (answer for answer in answers if answer.chip_first is not None),
            key=lambda answer: relative(answer.chip_first, answer),
        )
        if worst.question.part != "models":
            lost = f"{relative_words(worst.chip_first, worst)} ({worst.question.words})"
            yield f"Of all questions the least is reached in {lost}."


def _proofs(answers: Sequence[Answer], spent_s: tuple[float, float]) -> Iterator[str]:
    """Yield what was looked at, for every space."""
    yield "## Proofs"
    yield ""
    checked = sum(answer.checks is not None for answer in answers)
    certified = sum(answer.proven.status == "certified" for answer in answers)
    answers_h, checks_h = (each / 3600.0 for each in spent_s)
    yield (
        f"{checked} of {certified} certificates were checked (`make atlas-verify`). All answers "
        f"took {answers_h:.1f} hours of one processor, the checks {checks_h:.1f}."
    )
    yield ""
    head = ("study", "designs", "evaluated", "status", "checks of its certificate")
    yield from table(
        head,
        (
            [
                answer.question.spec.name,
                f"{answer.proven.points:,}",
                f"{answer.proven.evaluated:,}",
                proof_words(answer),
                "not checked" if answer.checks is None else f"{answer.checks:,}",
            ]
            for answer in answers
        ),
    )

"""The picture of the atlas: known chips beside the winners, and where the winners' time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from phaze_opt.report.figure_style import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, PINK, RED, SKY
from phaze_opt.report.figure_style import YELLOW as GOLD
from phaze_opt.report.words import kind_words
from studies.atlas.answers import Answer
from studies.atlas.ratios import relative
from studies.paper.figures import drawing, svg

_TITLES = {
    "models": "area of an H100",
    "dollars": "dollars of 1,024 H100",
    "watts": "watts of 1,024 H100",
}
_CHIP_COLOURS = (DARK, GREEN, SKY, BLUE, RED)
_TIME_COLOURS = (BLUE, ORANGE, GREEN, SKY, RED, PINK, GOLD, DARK, GREY, LIGHT)
_KINDS = len(_TIME_COLOURS) - 1
"""Kinds of time that have a colour of their own; all others share the last one."""


def picture(answers: Sequence[Answer]) -> str:
    """Draw, as SVG, throughput over the best that was found, and shares of a batch.

    Parameters
    ----------
    answers
        Those with known chips beside them are drawn, by budget.
    """
    parts = {
        part: [each for each in answers if each.question.part == part and each.known]
        for part in _TITLES
    }
    shown = {part: own for part, own in parts.items() if own}
    most = max(map(len, shown.values()))
    with drawing(2.6 * len(shown) + 4.5, 0.5 * most + 1.8) as figure:
        row = figure.subplots(1, len(shown) + 1, squeeze=False)[0]
        for axes, (part, own) in zip(row, shown.items(), strict=False):
            _known(axes, own)
            axes.set_title(_TITLES[part], fontsize=9)
        _time(row[-1], shown.get("models", []))
        handles, labels = row[0].get_legend_handles_labels()
        style = {"ncols": len(labels), "frameon": False, "fontsize": 8}
        figure.legend(handles, labels, loc="outside upper left", **style)
        return svg(figure)


def _known(axes: Axes, answers: Sequence[Answer]) -> None:
    """Draw known chips beside the winner, which is 1, a row for each model."""
    for place, chip in enumerate(answers[0].known):
        reached = [relative(answer.known[place], answer) for answer in answers]
        # What does not fit has no mark.
        fit = [(own, at) for at, own in enumerate(reached) if own]
        axes.plot(
            [own for own, _ in fit],
            [at for _, at in fit],
            "o",
            color=_CHIP_COLOURS[place % len(_CHIP_COLOURS)],
            label=chip.chip,
        )
    axes.axvline(1.0, color=DARK, linewidth=0.8)
    axes.set_yticks(range(len(answers)), [answer.question.words for answer in answers])
    axes.set_ylim(len(answers) - 0.5, -0.5)
    axes.set_xlim(left=0.0)
    axes.grid(axis="y", color=LIGHT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set_xlabel("throughput over the best\nthat was found in bf16", fontsize=8)


def _time(axes: Axes, answers: Sequence[Answer]) -> None:
    """Draw the shares of a batch of the winners of the models."""
    total: dict[str, float] = {}
    for answer in answers:
        for kind, share in (answer.proven.trained.shares or {}).items():
            total[kind] = total.get(kind, 0.0) + share
    kinds = sorted(total, key=lambda kind: -total[kind])
    for at, answer in enumerate(answers):
        shares = _named(answer.proven.trained.shares or {}, kinds)
        left = 0.0
        for share, colour in zip(shares, _TIME_COLOURS, strict=True):
            axes.barh(at, share, 0.7, left=left, color=colour)
            left += share
    names = [*map(kind_words, kinds[:_KINDS]), *(["all else"] if len(kinds) > _KINDS else [])]
    handles = [axes.barh(0, 0.0, color=colour) for colour in _TIME_COLOURS[: len(names)]]
    axes.legend(
        handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8
    )
    axes.set_title("time of the winners", fontsize=9)
    axes.set_yticks([])
    axes.set_ylim(len(answers) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("share of a batch", fontsize=8)


def _named(shares: Mapping[str, float], kinds: Sequence[str]) -> list[float]:
    """Return the shares of the first kinds, and of all others together."""
    first = [shares.get(kind, 0.0) for kind in kinds[:_KINDS]]
    rest = sum(shares.get(kind, 0.0) for kind in kinds[_KINDS:])
    return [*first, *[0.0] * (_KINDS - len(first)), rest]

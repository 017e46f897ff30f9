"""The table and the plot of the searches of `tests.benchmarks.sampler_bench`, for a README."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- sampler-bench -->\n", "<!-- end of sampler-bench -->\n"
"""Marks of the part of the README that is written here."""

NEAR = 0.01
"""Distance from the optimum within which a search has found it, as far as tables tell."""

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 320, 60, 20
_MOST_REGRET = 0.5
_COLOURS = (
    "#000000",
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#999999",
    "#882255",
    "#44aa99",
)


@dataclass(frozen=True)
class Search:
    """One search of one sampler.

    Attributes
    ----------
    baselines
        Trials that the sampler did not choose, the first ones.
    regrets
        Of the best design after each trial, relative to the certified optimum; 1 before any.
    infeasible, duplicates
        Trials; a duplicate has the point of an earlier one.
    is_proven
        Whether it ended with a proof.
    ask_s
        That the sampler took for all proposals, bounds included: seconds of a processor.
    """

    model: str
    sampler: str
    seed: int
    trials: int
    baselines: int
    regrets: tuple[float, ...]
    infeasible: int
    duplicates: int
    is_proven: bool
    ask_s: float

    @property
    def trials_until_near(self) -> float:
        """Trials besides the baselines until within `NEAR` of the optimum; infinite if never."""
        for number, regret in enumerate(self.regrets, start=1):
            if regret <= NEAR:
                return max(0, number - self.baselines)
        return math.inf


def write_report(done: Sequence[Search], readme: Path, plot: Path) -> None:
    """Write the table between the marks of a README, and the plot beside it."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(before + BEGIN + table(done) + END + after, encoding="utf-8")
    plot.write_text(figure(done), encoding="utf-8")


def table(done: Sequence[Search]) -> str:
    """Return a Markdown table: medians over the seeds, the soonest sampler first."""
    models = list(dict.fromkeys(one.model for one in done))
    rows = []
    for sampler in _by_quality(done):
        own = [one for one in done if one.sampler == sampler]
        cells = [_median_cell([one for one in own if one.model == model]) for model in models]
        near = sum(one.trials_until_near < math.inf for one in own)
        trials = sum(len(one.regrets) for one in own)
        rows.append(
            [
                f"`{sampler}`",
                *cells,
                f"{near} of {len(own)}",
                f"{statistics.median(one.regrets[-1] for one in own):.2%}",
                f"{sum(one.infeasible for one in own) / trials:.0%}",
                f"{sum(one.duplicates for one in own) / trials:.0%}",
                f"{1000 * sum(one.ask_s for one in own) / trials:.3g}",
            ]
        )
    headers = ["sampler", *models, "near", "regret", "infeasible", "duplicates", "ms/trial"]
    lines = [headers, ["---"] + ["---:"] * (len(headers) - 1), *rows]
    trials = max(one.trials for one in done)
    seeds = ", ".join(
        f"`{sampler}` {len({one.seed for one in done if one.sampler == sampler})}"
        for sampler in _by_quality(done)
    )
    note = f"At most {trials} trials; seeds: {seeds}. Empty cells were not run."
    rows_text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"\n{rows_text}\n\n{note}\n\n"


def _by_quality(done: Sequence[Search]) -> list[str]:
    """Return the samplers: first those that come near the optimum most often, then soonest."""

    def badness(sampler: str) -> tuple[float, float]:
        own = [one.trials_until_near for one in done if one.sampler == sampler]
        trials = max(one.trials for one in done)
        return statistics.mean(min(number, 2.0 * trials) for number in own), len(own)

    return sorted(dict.fromkeys(one.sampler for one in done), key=badness)


def _median_cell(searches: Sequence[Search]) -> str:
    """Write the median trials until near the optimum."""
    if not searches:
        return ""
    median = statistics.median_high(one.trials_until_near for one in searches)
    return "–" if math.isinf(median) else f"{median:.0f}"


def figure(done: Sequence[Search]) -> str:
    """Plot the median regret of each sampler after each trial, as SVG."""
    last = max(len(one.regrets) for one in done)
    x_of = (_WIDTH - _LEFT - 120) / math.log(last)
    y_of = (_HEIGHT - _TOP - 40) / _MOST_REGRET
    bottom = _TOP + y_of * _MOST_REGRET
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">trials, baselines included</text>',
    ]
    for regret in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
        y = bottom - y_of * regret
        parts.append(_line([(_LEFT, y), (_WIDTH - 120, y)], "#dddddd"))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{regret:.0%}</text>')
    for number in [one for one in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if one <= last]:
        x = _LEFT + x_of * math.log(number)
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{number}</text>'
        )
    for place, sampler in enumerate(_by_quality(done)):
        own = [one.regrets for one in done if one.sampler == sampler]
        points = []
        for number in range(1, last + 1):
            regret = statistics.median(each[min(number, len(each)) - 1] for each in own)
            points.append(
                (_LEFT + x_of * math.log(number), bottom - y_of * min(regret, _MOST_REGRET))
            )
        colour = _COLOURS[place % len(_COLOURS)]
        parts.append(_line(points, colour, 2))
        y = _TOP + 14 * place
        parts.append(f'<text x="{_WIDTH - 112}" y="{y + 4}" fill="{colour}">{sampler}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _line(points: Sequence[tuple[float, float]], colour: str, width: int = 1) -> str:
    """Draw a line through some points."""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

"""The figures of the results, as SVG that is the same for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze_opt.report.figure_style import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, PINK, RED, SKY
from phaze_opt.report.figure_style import YELLOW as GOLD
from studies.paper import binding
from studies.paper.comparison import PLACEMENTS
from studies.paper.experiments import OURS, Results
from studies.paper.settings import BASELINES
from studies.paper.tables import CHIPS, relative

_STYLE: Any = {
    "svg.hashsalt": "phaze-opt",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": DARK,
}
_COLOURS = dict(zip(CHIPS, (GREY, SKY, BLUE, GOLD, RED, ORANGE), strict=True))
_GROUP_COLOURS = dict(
    zip(
        (*binding.GROUPS, binding.OTHER),
        (BLUE, ORANGE, GREEN, SKY, RED, DARK, PINK, GOLD, LIGHT, GREY),
        strict=True,
    )
)
_TITLES = {"expert": "expert placement", "solve": "solved placement"}


def figures(results: Results) -> dict[str, str]:
    """Return every figure by the name of its file."""
    return {
        "throughput.svg": throughput_figure(results),
        "area.svg": area_figure(results),
        "binding.svg": binding_figure(results),
    }


def throughput_figure(results: Results) -> str:
    """Draw the bars of the paper: throughput of every chip relative to the reference."""
    with _drawing(9.0, 6.0) as figure:
        rows = figure.subplots(len(PLACEMENTS), 1, sharex=True)
        for axes, placed_by in zip(rows, PLACEMENTS, strict=True):
            width = 0.8 / len(CHIPS)
            for place, chip in enumerate(CHIPS):
                heights = [
                    relative(results, model, chip, placed_by) for model in results.scope.models
                ]
                left = [x - 0.4 + (place + 0.5) * width for x in range(len(heights))]
                axes.bar(left, heights, width * 0.92, label=chip, color=_COLOURS[chip])
            axes.axhline(1.0, color=DARK, linewidth=0.8)
            axes.set_ylabel(f"{_TITLES[placed_by]}:\nthroughput, relative")
            axes.set_xticks(range(len(results.scope.models)), results.scope.models, rotation=20)
        rows[0].legend(
            ncols=len(CHIPS),
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            frameon=False,
            fontsize=8,
        )
        return _svg(figure)


def area_figure(results: Results) -> str:
    """Draw the best throughput within a share of the area, and the known chips at their areas."""
    with _drawing(8.0, 4.0) as figure:
        row = figure.subplots(1, max(1, len(results.areas)), squeeze=False)[0]
        for axes, (model, by_share) in zip(row, results.areas.items(), strict=False):
            winners = [*by_share.values(), results.ours[model]]
            reference = results.run(model, BASELINES[0], "expert").throughput_samples_per_s
            axes.plot(
                [one.area_mm2 for one in winners],
                [one.value / reference for one in winners],
                "o-",
                color=RED,
                label="searched",
            )
            for chip in BASELINES:
                _marks(axes, results, model, chip, reference)
            axes.set_title(model, fontsize=9)
            axes.set_xlabel("area under phaze-22nm, mm²")
            axes.set_xlim(left=0.0)
            axes.set_ylim(bottom=0.0)
        row[0].set_ylabel("throughput, relative")
        row[0].legend(frameon=False, fontsize=8)
        return _svg(figure)


def _marks(axes: Axes, results: Results, model: str, chip: str, reference: float) -> None:
    """Mark a known chip under both placements."""
    for placed_by, marker in zip(PLACEMENTS, ("v", "^"), strict=True):
        run = results.run(model, chip, placed_by)
        if run.area_mm2 is not None:
            axes.plot(
                [run.area_mm2],
                [run.throughput_samples_per_s / reference],
                marker,
                color=_COLOURS[chip],
                label=f"{chip}, {placed_by}",
            )


def binding_figure(results: Results) -> str:
    """Draw where the time of a batch goes, on the reference and on the searched chip."""
    bars = [
        (f"{model}, {words}", binding.shares(results.run(model, chip, placed_by)))
        for model in results.scope.models
        for words, chip, placed_by in (
            ("before", BASELINES[0], PLACEMENTS[0]),
            ("after", OURS, PLACEMENTS[1]),
        )
    ]
    with _drawing(9.0, 0.32 * len(bars) + 1.2) as figure:
        axes = figure.subplots()
        for place, (_, found) in enumerate(reversed(bars)):
            left = 0.0
            for group, share in found.items():
                axes.barh(place, share, 0.75, left=left, color=_GROUP_COLOURS[group])
                left += share
        axes.set_yticks(range(len(bars)), [name for name, _ in reversed(bars)])
        axes.set_xlim(0.0, 1.0)
        axes.set_xlabel("share of a batch")
        handles = [axes.barh(0, 0.0, color=colour) for colour in _GROUP_COLOURS.values()]
        axes.legend(
            handles,
            list(_GROUP_COLOURS),
            ncols=5,
            loc="lower left",
            bbox_to_anchor=(-0.25, 1.0),
            frameon=False,
            fontsize=8,
        )
        return _svg(figure)


@contextmanager
def _drawing(width: float, height: float) -> Iterator[Figure]:
    """Provide a figure in the style of the project; sizes in inches."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Figure) -> str:
    """Return a figure as SVG without the time at which it was drawn."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # Blanks before the end of a line would be taken for mistakes.
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"

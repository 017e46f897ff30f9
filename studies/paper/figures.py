"""The figures of the results, as SVG that is the same for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from phaze_opt.report.figure_style import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, PINK, RED, SKY
from phaze_opt.report.figure_style import YELLOW as GOLD
from studies.paper import binding
from studies.paper.comparison import PLACEMENTS, Comparison
from studies.paper.experiments import OURS, Results
from studies.paper.searches import ProvenFront
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
_COLOURS = dict(zip(CHIPS, (GREY, SKY, BLUE, GOLD, RED), strict=True))
_GROUP_COLOURS = dict(
    zip(
        (*binding.GROUPS, binding.OTHER),
        (BLUE, ORANGE, GREEN, SKY, RED, DARK, PINK, GOLD, LIGHT, GREY),
        strict=True,
    )
)
_RATIOS = (1, 2, 3, 5, 10, 20)
_TITLES = {"expert": "expert placement", "solve": "solved placement"}


def figures(results: Results) -> dict[str, str]:
    """Return every figure by the name of its file."""
    return {
        "throughput.svg": throughput_figure(results),
        "area.svg": area_figure(results, results.fronts),
        "binding.svg": binding_figure(results),
    }


def throughput_figure(results: Comparison) -> str:
    """Draw the throughput of every chip relative to the reference, on a logarithmic axis."""
    models = results.scope.models
    with drawing(9.0, 6.4) as figure:
        figure.suptitle(
            f"Throughput relative to {BASELINES[0]} placed by experts, on a logarithmic axis",
            fontsize=10,
        )
        rows = figure.subplots(len(PLACEMENTS), 1, sharex=True, sharey=True)
        for axes, placed_by in zip(rows, PLACEMENTS, strict=True):
            for place, chip in enumerate(CHIPS):
                heights = [relative(results, model, chip, placed_by) for model in models]
                at = [x + 0.14 * (place - (len(CHIPS) - 1) / 2) for x in range(len(heights))]
                # What does not fit has no place on a logarithmic axis.
                fit = [(x, height) for x, height in zip(at, heights, strict=True) if height > 0.0]
                axes.vlines([x for x, _ in fit], 1.0, [y for _, y in fit], color=_COLOURS[chip])
                axes.plot(*zip(*fit, strict=True), "o", color=_COLOURS[chip], label=chip)
                for x, height in fit if chip == OURS else ():
                    words = f"{height:.2f}"
                    axes.annotate(
                        words, (x, height), (0, 5), textcoords="offset points", ha="center", size=7
                    )
            axes.axhline(1.0, color=DARK, linewidth=0.8)
            axes.set_yscale("log")
            axes.set_yticks(_RATIOS, [f"{ratio}×" for ratio in _RATIOS])
            axes.minorticks_off()
            axes.grid(axis="y", color=LIGHT, linewidth=0.5)
            axes.set_axisbelow(True)
            axes.set_ylabel(f"{_TITLES[placed_by]}:\nthroughput, relative")
            axes.set_xticks(range(len(models)), models, rotation=20)
        _, top = rows[0].get_ylim()
        rows[0].set_ylim(0.85, 1.25 * top)
        rows[0].legend(
            ncols=len(CHIPS),
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            frameon=False,
            fontsize=8,
        )
        return svg(figure)


def area_figure(results: Comparison, fronts: Mapping[str, ProvenFront]) -> str:
    """Draw the proven fronts of throughput and area, and the known chips at their areas."""
    with drawing(9.0, 4.4) as figure:
        figure.suptitle("Proven fronts: no design is both smaller and faster", fontsize=10)
        row = figure.subplots(1, max(1, len(fronts)), squeeze=False)[0]
        for axes, (model, front) in zip(row, fronts.items(), strict=False):
            reference = results.run(model, BASELINES[0], "expert").throughput_samples_per_s
            designs = sorted(front.designs, key=lambda design: design.area_mm2)
            axes.step(
                [design.area_mm2 for design in designs],
                [design.throughput_samples_per_s / reference for design in designs],
                "o-",
                where="post",
                color=RED,
                markersize=2.5,
                linewidth=1.0,
                label="front, searched with its placement",
            )
            for chip in BASELINES:
                _marks(axes, results, model, chip, reference)
            axes.set_title(f"{model}: {len(designs)} designs", fontsize=9)
            axes.set_xlabel("area under phaze-22nm [mm²]")
            axes.set_xlim(left=0.0)
            axes.set_ylim(bottom=0.0)
        row[0].set_ylabel(f"throughput relative to {BASELINES[0]},\nplaced by experts")
        handles, labels = row[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )
        return svg(figure)


def _marks(axes: Axes, results: Comparison, model: str, chip: str, reference: float) -> None:
    """Mark a known chip under both placements."""
    for placed_by, marker in zip(PLACEMENTS, ("v", "^"), strict=True):
        run = results.run(model, chip, placed_by)
        if run.area_mm2 is not None:
            axes.plot(
                [run.area_mm2],
                [run.throughput_samples_per_s / reference],
                marker,
                color=_COLOURS[chip],
                label=f"{chip}, {_TITLES[placed_by]}",
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
    with drawing(9.0, 0.32 * len(bars) + 1.6) as figure:
        figure.suptitle(
            f"Before: {BASELINES[0]} placed by experts; after: the searched chip, placement solved",
            fontsize=10,
        )
        axes = figure.subplots()
        for place, (_, values) in enumerate(reversed(bars)):
            left = 0.0
            for group, share in values.items():
                axes.barh(place, share, 0.75, left=left, color=_GROUP_COLOURS[group])
                left += share
        axes.set_yticks(range(len(bars)), [name for name, _ in reversed(bars)])
        axes.set_xlim(0.0, 1.0)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel("share of the time of a batch, by what binds it")
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
        return svg(figure)


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Provide a figure in the style of the project; sizes in inches."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def svg(figure: Figure) -> str:
    """Return a figure as SVG without the time at which it was drawn."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # Blanks before the end of a line would be taken for mistakes.
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"

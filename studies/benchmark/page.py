"""The page of the benchmark and its picture: regrets to the proven optimum, by sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from phaze_opt.report.figure_style import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, PINK, RED, SKY
from studies.benchmark.problem import VERSION, Problem
from studies.benchmark.searches import BOUND, MOST, Searched
from studies.paper.figures import drawing, svg
from studies.paper.tables import markdown

PICTURE = "regret.svg"
NEAR = 0.01
"""Distance from the optimum within which a search has found it, as far as tables tell."""

_AFTER = (10, 50, 200)
_LEAST = 1e-3
"""Regret below which curves are drawn at the bottom."""
_COLOURS = (DARK, BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY)


def page(problems: Sequence[Problem], searches: Sequence[Searched]) -> str:
    """Return the page.

    Parameters
    ----------
    problems
        In the order of its tables.
    searches
        Of all samplers on all problems.
    """
    lines = ["# Samplers on problems with known optima", "", *_about(problems), ""]
    lines += ["## All problems", "", *_overall(problems, searches), ""]
    for problem in problems:
        lines += [*_section(problem, [one for one in searches if one.problem == problem.name]), ""]
    return "\n".join(lines)


def _about(problems: Sequence[Problem]) -> Iterator[str]:
    """Yield what is measured, and how."""
    versions = ", ".join(sorted({one.certificate.cost_model_version for one in problems}))
    limited = ", ".join(
        f"`{name}` {most.seeds} seeds of {most.trials} trials" for name, most in MOST.items()
    )
    yield (
        "Regret is the relative distance of the best value so far from the proven optimum, 100 % "
        "before the first feasible trial; the median over the seeds. *Near* is the share of the "
        f"seeds that came within {NEAR:.0%}. Samplers are those of Optuna {optuna.__version__} "
        "with their defaults; `climb` and `bound` are those of phaze-opt. All but `bound` see the "
        "values alone, of an infeasible point its violation; `bound` has bounds of the cost model, "
        "of which its order is bundled, needs no seed, and stops at its proof, which holds to "
        f"0.1 %. At most, since they take long: {limited}. A point that comes again is a trial."
    )
    yield ""
    yield (
        f"Version {VERSION} of the benchmark, values of cost model {versions}; written by "
        "`make benchmark`."
    )
    yield ""
    yield f"![Median regret by trial]({PICTURE})"


def _overall(problems: Sequence[Problem], searches: Sequence[Searched]) -> Iterator[str]:
    """Yield the median regret at the end, by sampler and problem."""
    yield "Median regret after the last trial, and near:"
    yield ""
    rows = []
    for sampler in by_quality(searches):
        own = {one.problem: one for one in searches if one.sampler == sampler}
        cells = [f"{_median(own[one.name], -1)}, {_near(own[one.name])}" for one in problems]
        rows.append([f"`{sampler}`", *cells])
    yield markdown(["sampler", *(problem.name for problem in problems)], rows)


def _section(problem: Problem, searches: Sequence[Searched]) -> Iterator[str]:
    """Yield what is known of a problem, and how soon samplers find it."""
    feasible = np.isfinite(problem.values)
    near = int(np.sum(problem.values[feasible] >= (1.0 - NEAR) * problem.optimum))
    yield f"## {problem.name}"
    yield ""
    yield (
        f"{problem.about} {problem.size:,} points, {feasible.mean():.0%} feasible, {near} within "
        f"{NEAR:.0%} of the optimum, {problem.optimum:,.6g} {problem.unit}: "
        + ", ".join(f"{name} {value}" for name, value in problem.best.items())
        + f". {problem.certificate.status.capitalize()}: "
        f"{problem.certificate.evaluated:,} of {problem.certificate.points:,} points evaluated, "
        f"{problem.certificate.checks:,} statements of the certificate checked."
    )
    yield ""
    rows = []
    order = by_quality(searches)
    for one in sorted(searches, key=lambda one: order.index(one.sampler)):
        medians = (_median(one, trials - 1) for trials in _AFTER)
        rows.append([f"`{one.sampler}`", *medians, _near(one), str(len(one.regrets))])
    after = (f"after {trials} trials" for trials in _AFTER)
    yield markdown(["sampler", *after, "near", "seeds"], rows)


def by_quality(searches: Sequence[Searched]) -> list[str]:
    """Return the samplers: that with the least mean regret over all its trials first."""
    names = dict.fromkeys(one.sampler for one in searches)
    shortest = min(len(one.regrets[0]) for one in searches)

    def regret(sampler: str) -> float:
        own = [one.curves[:, :shortest] for one in searches if one.sampler == sampler]
        return float(np.mean([curve.mean() for curve in own]))

    return sorted(names, key=regret)


def _median(searched: Searched, place: int) -> str:
    """Return the median regret at a trial; a dash where it has no such trial."""
    curves = searched.curves
    return f"{np.median(curves[:, place]):.1%}" if place < curves.shape[1] else "–"


def _near(searched: Searched) -> str:
    """Return the share of the seeds that came near the optimum."""
    return f"{np.mean(searched.curves[:, -1] <= NEAR):.0%}"


def picture(problems: Sequence[Problem], searches: Sequence[Searched]) -> str:
    """Draw the median regret of every sampler after each trial, as SVG."""
    samplers = by_quality(searches)
    by_names = {(one.problem, one.sampler): one for one in searches}
    with drawing(9.0, 5.6) as figure:
        shape = -(-len(problems) // 3), 3
        panels = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, problem in zip(panels, problems, strict=False):
            for sampler, colour in zip(samplers, _COLOURS[: len(samplers)], strict=True):
                _curve(axes, by_names[problem.name, sampler], colour)
            axes.set_title(f"{problem.name}: {problem.size:,} points", fontsize=9)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_ylim(0.8 * _LEAST, 1.1)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.axhline(NEAR, color=LIGHT, linewidth=0.8)
        for axes in panels[len(problems) :]:
            axes.set_axis_off()
        figure.supxlabel("trials", fontsize=9)
        figure.supylabel(f"median regret, at least {_LEAST:.1%}", fontsize=9)
        handles, labels = panels[0].get_legend_handles_labels()
        style = {"ncols": len(labels), "frameon": False, "fontsize": 8}
        figure.legend(handles, labels, loc="outside upper center", **style)
        return svg(figure)


def _curve(axes: Axes, searched: Searched, colour: str) -> None:
    """Draw one sampler: only trials at which its median changes, and the last."""
    median = np.maximum(np.median(searched.curves, axis=0), _LEAST)
    kept = np.flatnonzero(np.diff(median, prepend=np.inf))
    trials = np.append(kept, len(median) - 1)
    dashes = "--" if searched.sampler == BOUND else "-"
    axes.step(
        trials + 1, median[trials], dashes, where="post", color=colour, label=searched.sampler
    )

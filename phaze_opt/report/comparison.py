"""Studies of one question side by side: tables, and the best value after each trial as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from phaze_opt.report.layout import add_row, grid, section, sentence, shortened
from phaze_opt.report.study_words import value_words
from phaze_opt.units import format_seconds
from phaze_opt.user_files import write_file
from phaze_opt.whole_space.comparing import SHARES, Comparison, Reached, SearchScore

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LONGEST_NAME = 24


def comparison_tables(compared: Comparison) -> RenderableType:
    """Show how good every search is, how soon it was, and where its trials were wasted."""
    parts = [sentence(_optimum_words(compared), style="bold"), sentence(""), _answers(compared)]
    if compared.optimum is not None:
        parts.append(section("trials until within", _trials_until(compared), _until_note(compared)))
        parts.append(section("seconds until within", _seconds_until(compared), _SECONDS_NOTE))
    parts.append(section("wasted trials", _wasted(compared.studies)))
    return Group(*parts)


def _optimum_words(compared: Comparison) -> str:
    """Say what the studies are measured by."""
    spec, optimum = compared.spec, compared.optimum
    if len(spec.objectives) > 1:
        return f"{spec.models}: hypervolume relative to the joined front of all studies"
    if optimum is None:
        return f"{spec.models}: nothing feasible is known"
    words = f"{spec.models}: {optimum.status} {value_words(spec, [optimum.value])}"
    if optimum.status == "certified":
        return words
    return f"{words}; 'phaze-opt study enumerate {compared.studies[0].name}' certifies the optimum"


def _answers(compared: Comparison) -> RenderableType:
    """List the best design of each study."""
    if len(compared.spec.objectives) > 1:
        table = grid("study", "sampler", ">seed", ">trials", ">hypervolume")
        for score in compared.studies:
            add_row(table, *_names(score), str(score.complete), _percent(score.hypervolume))
        return table
    unit = compared.spec.objective_kinds[0].unit if len(compared.spec.runs) == 1 else "relative"
    table = grid("study", "sampler", ">seed", ">trials", f">{unit}", ">regret", ">rank", ">place")
    for score in compared.studies:
        value = "–" if score.value is None else _value(score.value)
        add_row(
            table,
            *_names(score),
            str(score.complete),
            value,
            _percent(score.regret),
            _number(score.rank),
            _number(score.place),
        )
    return table


def _names(score: SearchScore) -> tuple[str, str, str]:
    """Return the cells that name a search."""
    return shortened(score.name, _LONGEST_NAME), score.sampler, str(score.seed)


def _until_table() -> tuple[str, ...]:
    """Return the headers of the distances from the optimum."""
    return tuple(f">{within:.0%}" if within else ">optimum" for within in SHARES)


def _trials_until(compared: Comparison) -> RenderableType:
    """List the trials until each distance from the optimum, also those of random search."""
    table = grid("study", "sampler", *_until_table())
    for score in compared.studies:
        name, sampler, _ = _names(score)
        add_row(table, name, sampler, *[_number(each.trials) for each in score.reached])
    if any(each.points is not None for each in compared.random):
        cells = [
            "–" if each.expected_trials is None else f"{each.expected_trials:,.0f}"
            for each in compared.random
        ]
        add_row(table, "expected", "random", *cells)
        add_row(
            table, "median", "random", *[_number(draw.median_trials) for draw in compared.random]
        )
    return table


def _until_note(compared: Comparison) -> str:
    """Say what is not known of random search."""
    known = [(draw.within, draw.points) for draw in compared.random if draw.points is not None]
    if not known:
        return "How many points are that good is not known, hence not what random search needs."
    parts = [
        f"{points:,} within {within:.0%}" if within else f"{points} optimum"
        for within, points in known
    ]
    words = f"Of {compared.points:,} points of the space: {', '.join(parts)}."
    if len(known) < len(SHARES):
        words += " For the others a longer top must be enumerated: 'study enumerate --top'."
    return words


_SECONDS_NOTE = "That workers spent on these trials, one after the other; cached ones take no time."


def _seconds_until(compared: Comparison) -> RenderableType:
    """List the seconds until each distance from the optimum."""
    table = grid("study", "sampler", *_until_table())
    for score in compared.studies:
        name, sampler, _ = _names(score)
        add_row(table, name, sampler, *map(_seconds, score.reached))
    return table


def _wasted(studies: Sequence[SearchScore]) -> RenderableType:
    """List the trials that could not find anything new."""
    table = grid("study", "sampler", ">trials", ">duplicates", ">infeasible", "by limit", ">failed")
    for score in studies:
        name, sampler, _ = _names(score)
        limits = ", ".join(f"{number} {limit}" for limit, number in score.infeasible.items())
        add_row(
            table,
            name,
            sampler,
            str(score.complete),
            str(score.duplicates),
            str(sum(score.infeasible.values())),
            limits or "–",
            str(score.failed),
        )
    return table


def _seconds(reached: Reached) -> str:
    """Write seconds, where it was reached."""
    return "–" if reached.seconds is None else format_seconds(reached.seconds)


def _number(number: int | None) -> str:
    """Write a number, where there is one."""
    return "–" if number is None else f"{number:,}"


def _value(value: float) -> str:
    """Write a value with six digits, a large one whole."""
    return f"{value:,.0f}" if value >= 1e5 else f"{value:,.6g}"


def _percent(share: float | None) -> str:
    """Write a share with two digits behind the point, where there is one."""
    return "–" if share is None else f"{share:.2%}"


def comparison_figure(compared: Comparison) -> Figure:
    """Plot the best value after each trial, and the optimum."""
    from plotly.graph_objects import Figure, Scatter

    spec, optimum = compared.spec, compared.optimum
    figure = Figure()
    for score in compared.studies:
        known = [(n, value) for n, value in enumerate(score.best_values, 1) if value is not None]
        figure.add_trace(
            Scatter(
                x=[n for n, _ in known],
                y=[value for _, value in known],
                mode="lines",
                line={"shape": "hv"},
                name=f"{score.name} ({score.sampler})",
            )
        )
    if optimum is not None:
        figure.add_hline(y=optimum.value, line_dash="dot", annotation_text=optimum.status)
    figure.update_layout(
        template="plotly_white",
        title=spec.models,
        xaxis_title="complete trials, baselines included",
        yaxis_title=f"best {spec.metric_names[0]}",
    )
    return figure


def write_comparison(compared: Comparison, path: Path) -> None:
    """Write the plot as a page of HTML that needs nothing else.

    Raises
    ------
    PhazeError
        If the file cannot be written.
    """
    figure = comparison_figure(compared)
    write_file(path, figure.to_html(include_plotlyjs=True, include_mathjax=False))

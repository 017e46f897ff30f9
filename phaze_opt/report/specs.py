"""Tables about specs: what a spec means, and how two studies differ."""

from __future__ import annotations

from rich.console import Group, RenderableType

from phaze_opt.report.layout import add_row, grid, pairs, sentence, shortened
from phaze_opt.report.study_words import limit_words, models_words, objective_words
from phaze_opt.report.tables import value_words
from phaze_opt.report.words import share_words
from phaze_opt.spec.axes import axis_words
from phaze_opt.study.difference import StudyDifference
from phaze_opt.study.spec_check import SpecCheck
from phaze_opt.units import counted, format_seconds

_LONGEST_CELL = 24


def spec_table(checked: SpecCheck) -> RenderableType:
    """Show a valid spec, and what a run of it will meet."""
    resolved, spec = checked.resolved, checked.resolved.spec
    table = pairs()
    add_row(table, "workloads" if len(spec.runs) > 1 else "model", models_words(spec))
    add_row(table, "devices", f"{spec.devices:,} ({spec.cluster})")
    add_row(table, "searched for", objective_words(spec))
    for name, axis in spec.space.axes.items():
        add_row(table, name, axis_words(axis))
    within = checked.within_limits
    listed = "" if within is None else f", of which {within:,} within the limits of the chip"
    add_row(table, "points", f"{checked.points:,}{listed}")
    limit = f"{resolved.area_limit_mm2:.6g} mm² ({spec.area.model})"
    add_row(table, "area limit", limit)
    add_row(table, "feasible", _feasible_words(checked))
    if checked.seconds_per_point is not None:
        add_row(table, "a point takes", format_seconds(checked.seconds_per_point))
    add_row(table, "search", f"{counted(spec.search.trials, 'trial')}, {spec.sampler}")
    if checked.trials_s is not None:
        add_row(table, "takes", _time_words(checked, checked.trials_s))
    limits = limit_words(spec)
    if limits is not None:
        add_row(table, "limits", limits)
    for baseline in resolved.baselines:
        reason = checked.outside.get(baseline.name)
        words = "in the space" if reason is None else f"outside: {reason}"
        add_row(table, baseline.name, words)
    return Group(sentence(f"{spec.name}: valid", style="bold"), table)


def _time_words(checked: SpecCheck, trials_s: float) -> str:
    """Say about how long a run takes on one core, beside its baselines."""
    trials = f"about {_whole_seconds(trials_s)} for the trials"
    if checked.boxes_s is None:
        return trials
    boxes = f"about {_whole_seconds(checked.boxes_s)} to bound boxes of chips"
    return f"{boxes}, then chips as needed; at most {trials}"


def _whole_seconds(seconds: float) -> str:
    """Write seconds that are known to a factor."""
    return f"{max(1.0, seconds):,.0f} s"


def _feasible_words(checked: SpecCheck) -> str:
    """Say which share of the points is feasible, and how that is known."""
    words = f"{checked.within_area:,} of {checked.sampled:,} points are chips within the area"
    if checked.evaluated == 0:
        return words
    words += f", {checked.feasible} of {checked.evaluated} of these fit"
    return f"{share_words(checked.feasible_share)}: {words}"


def difference_tables(difference: StudyDifference) -> RenderableType:
    """Show what differs between two studies."""
    parts: list[RenderableType] = []
    for what, differences in (("specs", difference.spec), ("best designs", difference.best)):
        if not differences:
            parts.append(sentence(f"The {what} do not differ."))
            continue
        table = grid(what, *difference.names)
        for line in differences:
            add_row(table, line.key, _cell_words(line.first), _cell_words(line.second))
        parts.append(table)
    return Group(*parts)


def _cell_words(value: object) -> str:
    """Write a value of a spec or a design."""
    if value is None:
        return "–"
    return value_words(value) if isinstance(value, float) else shortened(str(value), _LONGEST_CELL)

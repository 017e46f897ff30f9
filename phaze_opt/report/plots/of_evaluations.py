"""Plots of single evaluations, one or several of them side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from phaze_opt.choices import EvaluationPlotKind
from phaze_opt.evaluation import Evaluation
from phaze_opt.explanation.stage import MEMORY_KINDS, fullest_stage
from phaze_opt.placement.placement_problem import StageMemory
from phaze_opt.report.figure_style import (
    BLUE,
    GREEN,
    GREY,
    LIGHT,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
    Figure,
    empty_figure,
)
from phaze_opt.report.plots.stacked import Scale, StackedBar, stacked
from phaze_opt.report.words import RESOURCE_WORDS, kind_words
from phaze_opt.units import GIB, format_bytes, format_seconds

EVALUATION_PLOT_KINDS: tuple[EvaluationPlotKind, ...] = get_args(EvaluationPlotKind)

EVALUATION_TITLES: Mapping[EvaluationPlotKind, str] = {
    "time": "Where the time of a batch goes",
    "memory": "What fills the memory of the fullest device",
    "binding": "What binds the operators",
}

_TIME_COLOURS = {
    "forward": BLUE,
    "recompute": SKY,
    "backward": GREEN,
    "tensor_collectives": ORANGE,
    "token_exchanges": "#B5651D",
    "transfer": YELLOW,
    "gradient_synchronisation": RED,
    "parameter_gather": PINK,
    "optimizer": "#7A5C3E",
    "gradient_accumulation": "#4D4D4D",
    "bubble": LIGHT,
}
_MEMORY_COLOURS = dict(zip(MEMORY_KINDS, (BLUE, GREEN, ORANGE, SKY, PINK), strict=True))
_RESOURCE_COLOURS = {
    "compute": BLUE,
    "lanes": GREEN,
    "glb": SKY,
    "hbm": ORANGE,
    "link": RED,
    "overhead": GREY,
}

Named = Mapping[str, Evaluation]
"""Evaluations by what they are called in the plot, in its order."""


def evaluation_plot(
    evaluations: Named, kind: EvaluationPlotKind, usable_bytes: Mapping[str, float] | None = None
) -> Figure:
    """Draw evaluations side by side.

    Parameters
    ----------
    evaluations
        By their names.
    kind
        ``time`` of a batch by what it is spent on, ``memory`` of the fullest device (where nothing
        fits, of the placement that is nearest to fitting), or ``binding``: the resources that
        bind the operators, by seconds.
    usable_bytes
        What a device may hold, by the same names, where that is known.
    """
    if kind == "memory":
        return _memories(evaluations, usable_bytes or {})
    return batch_times(evaluations) if kind == "time" else _bindings(evaluations)


def batch_times(evaluations: Named) -> Figure:
    """Draw the time of a batch by what it is spent on; of those that fit."""
    bars = [
        StackedBar(
            name,
            evaluation.time_breakdown_s,
            evaluation.time_per_batch_s,
            format_seconds(evaluation.time_per_batch_s),
        )
        for name, evaluation in evaluations.items()
        if evaluation.time_per_batch_s
    ]
    if not bars:
        return empty_figure("Nothing fits: there is no time of a batch.")
    unit_s, unit = _time_unit(max(bar.whole for bar in bars))
    scale = Scale(f"time of a batch [{unit}]", unit_s, format_seconds, kind_words, _TIME_COLOURS)
    return stacked(bars, scale)


def _memories(evaluations: Named, usable_bytes: Mapping[str, float]) -> Figure:
    """Draw the memory of the fullest device by kind, beside what it may hold."""
    bars = []
    for name, evaluation in evaluations.items():
        memory, misfit = _held(evaluation), evaluation.misfit
        if memory is not None:
            parts = {kind: float(getattr(memory, kind)) for kind in MEMORY_KINDS}
            limit = usable_bytes.get(name) if misfit is None else misfit.usable_bytes
            usable = "" if limit is None else f" of {format_bytes(limit)}"
            words = f"{format_bytes(memory.total)}{usable}"
            bars.append(StackedBar(name, parts, float(memory.total), words, limit))
    if not bars:
        return empty_figure("It is not known what the devices would hold.")
    return stacked(bars, Scale("memory [GiB]", GIB, format_bytes, kind_words, _MEMORY_COLOURS))


def _held(evaluation: Evaluation) -> StageMemory | None:
    """Return what the fullest device holds, or would hold where it is too much."""
    placement, misfit = evaluation.placement, evaluation.misfit
    if placement is not None:
        return placement.stages[fullest_stage(placement)].memory_bytes
    return None if misfit is None else misfit.memory


def _bindings(evaluations: Named) -> Figure:
    """Draw the share of the operators' seconds that each resource binds."""
    bars = [
        StackedBar(name, evaluation.bound_by_share, 1.0, "")
        for name, evaluation in evaluations.items()
        if evaluation.bound_by_share
    ]
    if not bars:
        return empty_figure("No operator takes any time.")

    def resource_words(resource: str) -> str:
        return RESOURCE_WORDS.get(resource, resource)

    def percent(share: float) -> str:
        return f"{100.0 * share:.1f} %"

    title = "share of the operators' time [%]"
    return stacked(bars, Scale(title, 0.01, percent, resource_words, _RESOURCE_COLOURS))


def _time_unit(largest_s: float) -> tuple[float, str]:
    """Choose the unit of an axis of times: seconds in it, and its name."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if largest_s >= scale:
            return scale, unit
    return 1e-6, "µs"

"""The time of a batch by what it is spent on: the best design beside the others."""

from __future__ import annotations

from phaze_opt.evaluation import Evaluation
from phaze_opt.report.figure_style import Figure, empty_figure
from phaze_opt.report.plots.of_evaluations import batch_times
from phaze_opt.report.study_view import StudyView


def breakdown(view: StudyView) -> Figure:
    """Draw the time of a batch by what it is spent on: the best design beside the others."""
    evaluations = _evaluations(view)
    if not evaluations:
        return empty_figure("No evaluation is stored yet.")
    return batch_times(evaluations)


def _evaluations(view: StudyView) -> dict[str, Evaluation]:
    """List the batches whose times are known, those of one workload together."""
    runs = view.summary.resolved.spec.runs
    found: dict[str, dict[str, Evaluation]] = {}
    for design in view.compared:
        name = "best" if design.kind == "best" else design.name
        for run, evaluation in zip(runs, design.evaluations, strict=False):
            if evaluation is not None and evaluation.time_per_batch_s:
                whose = name if len(runs) == 1 else f"{run.name}: {name}"
                found.setdefault(run.name, {})[whose] = evaluation
    return {whose: each for name in sorted(found) for whose, each in found[name].items()}

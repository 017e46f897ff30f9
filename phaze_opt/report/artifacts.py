"""The files of a design: timelines of its pipeline and of its layers, and its time as a table."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from phaze_opt.errors import PhazeError
from phaze_opt.evaluation import Evaluation, place_on_slice
from phaze_opt.passes.scheduled import ScheduledPass
from phaze_opt.placement.placement_problem import Placement
from phaze_opt.point import Point, cost_point
from phaze_opt.report.gantt import gantt_page
from phaze_opt.report.markdown import plain
from phaze_opt.report.spreadsheet import harmless_cell
from phaze_opt.report.study_words import accelerator_words, ratio_words, training_words, value_words
from phaze_opt.report.timeline import pass_events, timeline_events
from phaze_opt.report.words import binding_words, placement_words, time_words
from phaze_opt.scheduling.perfetto import Event, trace_document
from phaze_opt.store.caches import ScheduleCache
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.proving import chosen_inputs, chosen_workload
from phaze_opt.study.study import Study

MOST_SLICES = 20_000
"""Forwards and backwards of a batch above which its timeline is not stored with a trial."""

_CSV, _HTML, _JSON = "text/csv", "text/html", "application/json"


@dataclass(frozen=True)
class ArtifactFile:
    """A file with its name."""

    name: str
    mimetype: str
    content: bytes


def trial_files(study: Study, best: BestDesign) -> list[ArtifactFile]:
    """Return the files of a design: of every workload what there is.

    Parameters
    ----------
    study
        Holds the workloads, and the schedules that were solved for the design.
    best
        The design, with its evaluations.
    """
    files = []
    whose = f"{study.name}, trial {best.number}"
    for run, evaluation in enumerate(best.evaluations):
        if evaluation is None or evaluation.placement is None:
            continue
        prefix = f"{run}-" if len(best.evaluations) > 1 else ""
        files.append(ArtifactFile(f"{prefix}breakdown.csv", _CSV, _breakdown(best, run)))
        if _slices(evaluation.placement) <= MOST_SLICES:
            files += _timelines(f"{prefix}pipeline", whose, timeline_events(evaluation.placement))
        events = pass_events(_passes(study, best, run, evaluation))
        files += _timelines(f"{prefix}schedules", whose, events) if events else []
    return files


def trial_note(best: BestDesign) -> str:
    """Write what a trial found, as Markdown."""
    values = value_words(best.spec, best.metrics.values)
    area_mm2 = best.metrics.area_mm2 or 0.0
    lines = [
        f"**{plain(values)}**, {area_mm2:,.1f} mm²: the best so far.",
        "",
        plain(f"{accelerator_words(best.params)}; {training_words(best.params)}."),
        "",
        *(f"- {plain(line)}" for line in ratio_words(best)),
    ]
    for metrics, evaluation in zip(best.metrics.runs, best.evaluations, strict=True):
        if evaluation is not None and evaluation.placement is not None:
            whose = f"{metrics.workload}: " if len(best.evaluations) > 1 else ""
            facts = (
                f"{whose}{placement_words(evaluation.placement)}",
                f"{whose}bound by {binding_words(evaluation)}",
                f"{whose}time of a batch: {time_words(evaluation)}",
            )
            lines += [f"- {plain(fact)}" for fact in facts]
    return "\n".join(lines)


def _timelines(name: str, whose: str, events: list[Event]) -> list[ArtifactFile]:
    """Return a timeline as a page and for Perfetto."""
    return [
        ArtifactFile(f"{name}.html", _HTML, gantt_page(events, f"{whose}: {name}").encode()),
        ArtifactFile(f"{name}.trace.json", _JSON, trace_document(events)),
    ]


def _slices(placement: Placement) -> int:
    """Count the forwards and backwards of a batch on one replica, these in one or two parts."""
    chunks = sum(len(stage.work) for stage in placement.stages)
    parts = 2 if placement.order is None else 3
    return parts * placement.microbatches * chunks


def _breakdown(best: BestDesign, run: int) -> bytes:
    """Write the time of a batch by its parts, of a design and of the baselines."""
    designs: list[tuple[str, Evaluation | None]] = [("best", best.evaluations[run])]
    for baseline in best.baselines:
        of_run = baseline.runs[run]
        designs.append((baseline.name, None if of_run is None else of_run.evaluation))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("design", "part", "seconds", "share"))
    for name, evaluation in designs:
        if evaluation is not None and evaluation.time_per_batch_s:
            for kind, seconds in evaluation.time_breakdown_s.items():
                share = seconds / evaluation.time_per_batch_s
                writer.writerow((harmless_cell(name), kind, repr(seconds), f"{share:.6f}"))
    return stream.getvalue().encode()


def _passes(
    study: Study, best: BestDesign, run: int, evaluation: Evaluation
) -> list[ScheduledPass]:
    """Return the passes of the layers of a design, as the search scheduled them."""
    inputs = chosen_inputs(study.resolved, run, best.design, best.metrics.runs[run])
    assert evaluation.placement is not None
    workload = chosen_workload(study, inputs, evaluation)
    if not any(
        layer.forward.operators for variant in workload.variants for layer in variant.layers
    ):
        return []
    placement = study.resolved.spec.placement
    point = Point(workload, inputs.accelerator, inputs.cluster, inputs.training, placement)
    try:
        # The cache is only read: what it gives was solved when the design was evaluated.
        cache = ScheduleCache(study.storage)
        costed, _ = place_on_slice(cost_point(point, cache), cache)
    except PhazeError:
        return []
    layers = costed.costs[evaluation.placement.tensor].passes
    return [scheduled for layer in layers for scheduled in layer.all()]

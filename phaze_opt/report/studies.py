"""Tables of studies: the answer of one, its trials, lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from phaze_opt.errors import PhazeError
from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.layout import add_row, fitted, grid, pairs, sentence, shortened
from phaze_opt.report.study_words import (
    accelerator_words,
    cached_words,
    certified_words,
    code_words,
    effort_words,
    models_words,
    objective_words,
    outside_words,
    proof_words,
    ratio_words,
    state_words,
    training_words,
    trial_state_words,
    trial_words,
    value_words,
)
from phaze_opt.report.tables import evaluation_tables
from phaze_opt.report.words import (
    bill_facts,
    binding_words,
    mfu_words,
    microbatch_words,
    padding_words,
    pass_proof_words,
    placement_words,
    power_words,
)
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.storage import in_parts
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.study import Study
from phaze_opt.study.summary import StudySummary
from phaze_opt.study.trials import RunMetrics, TrialRecord
from phaze_opt.units import counted, format_number
from phaze_opt.whole_space.enumerating import stored_enumeration
from phaze_opt.whole_space.exhaustive import Enumeration

_LONGEST_NAME = 20
_ROWS_OF_TABLE = 500


def best_tables(best: BestDesign) -> RenderableType:
    """Show the best design of a study with its whole evaluation, against the baselines.

    Raises
    ------
    PhazeError
        If its stored evaluation cannot be read.
    """
    known = [evaluation for evaluation in best.evaluations if evaluation is not None]
    if len(known) < len(best.evaluations):
        raise PhazeError(
            f"The stored evaluation of trial {best.number}, the best of the study, is damaged, "
            "lost or of another cost-model version; 'phaze-opt study copy NAME NEW "
            "--current-version' starts anew from its points."
        )
    params = best.params
    title = f"trial {best.number}: {accelerator_words(params)}; {training_words(params)}"
    lines = [sentence(line) for line in ("", *ratio_words(best))]
    if len(known) == 1:
        return Group(evaluation_tables(known[0], title), *lines, *_front_tables(best))
    runs = zip(best.metrics.runs, known, strict=True)
    tables = [
        evaluation_tables(evaluation, " ".join([metrics.workload, *_chosen_words(metrics)]))
        for metrics, evaluation in runs
    ]
    head = sentence(f"{title}: {value_words(best.spec, best.metrics.values)}", style="bold")
    return Group(head, *tables, *lines, *_front_tables(best))


def _chosen_words(metrics: RunMetrics) -> list[str]:
    """List what the evaluation of a workload chose."""
    return [f"{name} {value}" for name, value in metrics.chosen.items()]


def _front_tables(best: BestDesign) -> list[RenderableType]:
    """List the designs of the front, where there is one."""
    if not best.front:
        return []
    table = trials_table(best.spec, best.front)
    return [sentence(""), sentence("front", style="bold"), table]


def study_tables(study: Study) -> RenderableType:
    """Show the answer of a study so far and how it was found."""
    return summary_table(study.summary(), stored_enumeration(study))


def summary_table(summary: StudySummary, certified: Enumeration | None = None) -> RenderableType:
    """Show the answer of a study, against the certified optimum; see `study_tables`."""
    spec = summary.resolved.spec
    table = pairs()
    add_row(
        table,
        "question",
        f"{models_words(spec)} on {counted(spec.devices, 'device')}, {spec.cluster}, global batch "
        f"{spec.global_batch}, {spec.optimizer}",
    )
    if spec.objectives != ("throughput",) or len(spec.runs) > 1:
        add_row(table, "searched for", objective_words(spec))
    if summary.best is None:
        add_row(table, "best", "nothing feasible yet")
    else:
        _add_best(table, summary.best)
    if certified is not None:
        add_row(table, "certified", certified_words(summary, certified))
    if summary.is_outdated:
        add_row(
            table,
            "cost model",
            f"version {summary.resolved.cost_model_version}, whose evaluations this program may "
            f"not read; '{summary.next_command}' starts anew",
        )
    mixed = code_words(summary.codes, summary.resolved.cost_model_version)
    if mixed is not None:
        add_row(table, "code", mixed)
    add_row(table, "trials", trial_words(summary))
    for reason in summary.failures:
        add_row(table, "failed", reason)
    add_row(table, "time taken", effort_words(summary))
    add_row(table, "cached", cached_words(summary))
    add_row(table, "proven", proof_words(summary))
    for line in outside_words(summary):
        add_row(table, "outside", f"{line}; no trial can find it")
    return Group(sentence(f"{summary.name}: {state_words(summary)}", style="bold"), table)


def _add_best(table: Table, best: BestDesign) -> None:
    """Add the best design of a study, as far as it can be read."""
    values = value_words(best.spec, best.metrics.values)
    add_row(table, "best", f"{values} (trial {best.number})")
    if best.front:
        add_row(table, "front", f"{counted(len(best.front), 'design')}; 'study best' lists them")
    add_row(table, "accelerator", accelerator_words(best.params))
    add_row(table, "training", training_words(best.params))
    evaluation = best.evaluation if len(best.evaluations) == 1 else None
    for metrics in best.metrics.runs if len(best.metrics.runs) > 1 else ():
        speed = f"{format_number(metrics.throughput_samples_per_s)} samples/s"
        add_row(table, metrics.workload, " ".join([speed, *_chosen_words(metrics)]))
    if evaluation is not None and evaluation.placement is not None:
        add_row(table, "placement", placement_words(evaluation.placement))
        add_row(table, "microbatches", microbatch_words(evaluation.placement))
        if evaluation.padding_samples:
            add_row(table, "padding", padding_words(evaluation.padding_samples))
    for line in ratio_words(best):
        add_row(table, "against", line)
    area_mm2, limit_mm2 = best.metrics.area_mm2 or 0.0, best.resolved.area_limit_mm2
    used = f"{area_mm2:.4g} of {limit_mm2:.4g} mm² by {best.spec.area.model}"
    add_row(table, "area used", f"{area_mm2 / limit_mm2:.1%} ({used})")
    if evaluation is not None:
        add_row(table, "bound by", binding_words(evaluation))
        add_row(table, "MFU", mfu_words(evaluation))
        if evaluation.is_above_tdp:
            add_row(table, "power", power_words(evaluation))
        if best.spec.is_paid and evaluation.bill is not None:
            for name, words in bill_facts(evaluation.bill):
                add_row(table, name, words)
    for metrics, proofs in zip(best.metrics.runs, best.pass_proofs, strict=True):
        if proofs is not None:
            whose = "its passes" if len(best.pass_proofs) == 1 else f"{metrics.workload}: passes"
            add_row(table, whose, pass_proof_words(proofs))


def trials_table(spec: StudySpec, trials: Iterable[TrialRecord]) -> RenderableType:
    """List trials, one line each: the values, the area, and what is searched."""
    columns = SearchedColumns(spec)
    rows = [
        (str(trial.number), trial_state_words(trial), *columns.cells(trial.point, trial.metrics))
        for trial in trials
    ]
    return fitted((">trial", "state", *columns.headers), rows)


def trials_tables(spec: StudySpec, trials: Iterable[TrialRecord]) -> Iterator[RenderableType]:
    """List many trials as `trials_table` does, a table for each `_ROWS_OF_TABLE` of them."""
    pages = in_parts(trials, _ROWS_OF_TABLE)
    yield trials_table(spec, next(pages, []))
    for page in pages:
        yield Group(Text(), trials_table(spec, page))


def studies_table(summaries: Sequence[StudySummary]) -> Table:
    """List studies, one line each."""
    table = grid("study", "state", "trials", ">best", "model", ">devices")
    for summary in summaries:
        best = summary.best
        spec = summary.resolved.spec
        speed = "–" if best is None else value_words(spec, best.metrics.values)
        counts = f"{summary.trials['complete']:,} of {summary.target:,}"
        add_row(
            table,
            shortened(summary.name, _LONGEST_NAME),
            summary.state,
            counts,
            speed,
            shortened(spec.models, _LONGEST_NAME),
            str(spec.devices),
        )
    return table

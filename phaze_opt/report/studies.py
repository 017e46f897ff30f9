"""Tables and sentences about studies, used on the terminal and in the dashboard alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from phaze_opt.errors import PhazeError
from phaze_opt.report.layout import add_row, grid, pairs, sentence, shortened
from phaze_opt.report.tables import evaluation_tables
from phaze_opt.report.words import (
    binding_words,
    microbatch_words,
    padding_words,
    pass_proof_words,
    placement_words,
    share_words,
)
from phaze_opt.search.results import BestDesign, StudySummary
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.study import Study
from phaze_opt.search.trials import TrialRecord
from phaze_opt.units import format_seconds

_LONGEST_NAME = 20


def accelerator_words(point: DesignPoint) -> str:
    """Describe the chip of a point."""
    return (
        f"{point.num_tc} TC of {point.pe_x}×{point.pe_y}, "
        f"{point.num_vc} VC of {point.pe_vc} lanes, "
        f"GLB {point.glb_mib} MiB, HBM {point.hbm_gib} GiB"
    )


def training_words(point: DesignPoint) -> str:
    """Describe the training options of a point."""
    return f"microbatch {point.microbatch}, recompute {point.recompute}"


def ratio_words(best: BestDesign) -> list[str]:
    """Compare a design with every baseline, one line each."""
    lines = []
    for baseline in best.baselines:
        ratio = best.ratio(baseline)
        if baseline.point is None or ratio is None:
            lines.append(f"{baseline.name} fits under no training option")
            continue
        beyond = "" if baseline.within_area else ", itself above the area limit"
        lines.append(
            f"{ratio:.3f} × {baseline.name} ({baseline.throughput_samples_per_s:,.0f} samples/s at "
            f"{training_words(baseline.point)}{beyond})"
        )
    return lines


def state_words(summary: StudySummary) -> str:
    """Name the state of a study, and say how a stopped one goes on."""
    if summary.state == "stopping":
        return "stopping after the running trials"
    if summary.state == "stopped":
        return f"stopped; '{summary.next_command}' goes on"
    return summary.state


def trial_words(summary: StudySummary) -> str:
    """Count the trials."""
    trials = summary.trials
    limits = sorted(summary.why_infeasible.items())
    why = ", ".join(f"{count} by {limit}" for limit, count in limits)
    text = f"{trials['complete']:,} of {summary.target:,} complete"
    text += f", of which {trials['infeasible']} infeasible"
    text += f" ({why})" if why else ""
    for kind in ("failed", "running"):
        text += f", {trials[kind]} {kind}" if trials[kind] else ""
    return text


def effort_words(summary: StudySummary) -> str:
    """Say how long the search took, and how much of it was new."""
    if summary.rate_per_s is None:
        return "no trial yet"
    text = f"{format_seconds(summary.busy_s)} in trials, {summary.rate_per_s:.3g} trials/s"
    if summary.left_s is not None:
        text += f", about {format_seconds(summary.left_s)} left"
    return text


def proof_words(summary: StudySummary) -> str:
    """Say which share of the schedules is proven optimal, and which at almost no cost."""
    text = f"{share_words(summary.proven_schedule_share)} of the schedules"
    quick = summary.quickly_proven_schedule_share
    if quick is None:
        return text
    return f"{text}; {share_words(quick)} without search or in under 20 ms"


def best_tables(best: BestDesign) -> RenderableType:
    """Show the best design of a study with its whole evaluation, against the baselines.

    Raises
    ------
    PhazeError
        If its stored evaluation cannot be read.
    """
    if best.evaluation is None:
        raise PhazeError(
            f"The stored evaluation of trial {best.number}, the best of the study, is damaged, "
            "lost or of another cost-model version; 'phaze-opt study copy NAME NEW "
            "--current-version' starts anew from its points."
        )
    title = f"trial {best.number}: {accelerator_words(best.point)}; {training_words(best.point)}"
    lines = [sentence(line) for line in ("", *ratio_words(best))]
    return Group(evaluation_tables(best.evaluation, title), *lines)


def study_tables(study: Study) -> RenderableType:
    """Show the answer of a study so far and how it was found."""
    return summary_table(study.summary())


def summary_table(summary: StudySummary) -> RenderableType:
    """Show the answer of a study and how it was found; see `study_tables`."""
    spec = summary.resolved.spec
    table = pairs()
    add_row(
        table,
        "question",
        f"{spec.model} on {spec.devices:,} devices, {spec.cluster}, global batch "
        f"{spec.global_batch}, {spec.optimizer}",
    )
    if summary.best is None:
        add_row(table, "best", "nothing feasible yet")
    else:
        _add_best(table, summary.best, summary.resolved.area_limit_mm2)
    if summary.is_outdated:
        add_row(
            table,
            "cost model",
            f"version {summary.resolved.cost_model_version}, whose evaluations this program may "
            f"not read; '{summary.next_command}' starts anew",
        )
    add_row(table, "trials", trial_words(summary))
    for reason in summary.failures:
        add_row(table, "failed", reason)
    add_row(table, "time taken", effort_words(summary))
    add_row(table, "cached", f"{share_words(summary.cached_share)} of the evaluations")
    add_row(table, "proven", proof_words(summary))
    return Group(sentence(f"{summary.name}: {state_words(summary)}", style="bold"), table)


def _add_best(table: Table, best: BestDesign, limit_mm2: float) -> None:
    """Add the best design of a study, as far as it can be read."""
    speed = best.metrics.throughput_samples_per_s
    add_row(table, "best", f"{speed:,.0f} samples/s (trial {best.number})")
    add_row(table, "accelerator", accelerator_words(best.point))
    add_row(table, "training", training_words(best.point))
    evaluation = best.evaluation
    if evaluation is not None and evaluation.placement is not None:
        add_row(table, "placement", placement_words(evaluation.placement))
        add_row(table, "microbatches", microbatch_words(evaluation.placement))
        if evaluation.padding_samples:
            add_row(table, "padding", padding_words(evaluation.padding_samples))
    for line in ratio_words(best):
        add_row(table, "against", line)
    area_mm2 = best.metrics.area_mm2
    share = area_mm2 / limit_mm2
    add_row(table, "area used", f"{share:.1%} ({area_mm2:.4g} of {limit_mm2:.4g} mm²)")
    if evaluation is not None:
        add_row(table, "bound by", binding_words(evaluation))
        add_row(table, "MFU", share_words(evaluation.mfu))
        add_row(table, "its passes", pass_proof_words(evaluation))


def trials_table(trials: Iterable[TrialRecord]) -> Table:
    """List trials, one line each; the sizes of GLB and HBM in MiB and GiB."""
    table = grid(
        *(">trial", "state", ">samples/s", ">mm²", ">TC", ">VC", ">GLB", ">HBM", ">batch"),
        "recompute",
        gap=1,
    )
    for trial in trials:
        metrics, point = trial.metrics, trial.point
        speed = metrics.throughput_samples_per_s if metrics and metrics.feasible else None
        chip = ["–"] * 6
        if point is not None:
            chip = [
                f"{point.num_tc}×{point.pe_x}×{point.pe_y}",
                f"{point.num_vc}×{point.pe_vc}",
                str(point.glb_mib),
                str(point.hbm_gib),
                str(point.microbatch),
                point.recompute,
            ]
        add_row(
            table,
            str(trial.number),
            _state_words(trial),
            "–" if speed is None else f"{speed:,.0f}",
            "–" if metrics is None else f"{metrics.area_mm2:,.1f}",
            *chip,
        )
    return table


def _state_words(trial: TrialRecord) -> str:
    """Name the state of a trial; of an infeasible one the limit that rules it out."""
    if trial.kind == "infeasible" and trial.metrics is not None:
        return "over area" if trial.metrics.evaluation_key is None else "not fitting"
    return trial.kind


def studies_table(summaries: Sequence[StudySummary]) -> Table:
    """List studies, one line each."""
    table = grid("study", "state", "trials", ">best samples/s", "model", ">devices")
    for summary in summaries:
        best = summary.best
        speed = "–" if best is None else f"{best.metrics.throughput_samples_per_s:,.0f}"
        spec = summary.resolved.spec
        counts = f"{summary.trials['complete']:,} of {summary.target:,}"
        add_row(
            table,
            shortened(summary.name, _LONGEST_NAME),
            summary.state,
            counts,
            speed,
            shortened(spec.model, _LONGEST_NAME),
            str(spec.devices),
        )
    return table

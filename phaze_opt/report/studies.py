"""Tables and sentences about studies, used on the terminal and in the dashboard alike."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from phaze_opt.errors import PhazeError
from phaze_opt.report.layout import add_row, fitted, grid, pairs, sentence, shortened
from phaze_opt.report.tables import evaluation_tables
from phaze_opt.report.words import (
    axis_words,
    binding_words,
    microbatch_words,
    padding_words,
    pass_proof_words,
    placement_words,
    share_words,
    value_of_axis,
)
from phaze_opt.search.axes import Scalar
from phaze_opt.search.axis_names import AxisKind, kind_of
from phaze_opt.search.enumerating import stored_enumeration
from phaze_opt.search.exhaustive import Enumeration
from phaze_opt.search.objectives import ObjectiveKind
from phaze_opt.search.results import BestDesign, StudySummary
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.spec import StudySpec
from phaze_opt.search.study import Study
from phaze_opt.search.trials import Metrics, RunMetrics, TrialRecord
from phaze_opt.units import counted, format_number, format_seconds

_LONGEST_NAME = 20

_CHIP_ORDER = {
    "TC": ("num_tc", "pe_x", "pe_y"),
    "VC": ("num_vc", "pe_vc"),
    "GLB": ("glb_mib",),
    "HBM": ("hbm_gib",),
    "GB/s": ("hbm_gb_per_s",),
    "batch": ("microbatch",),
}
"""Columns of tables of designs; GLB in MiB, HBM in GiB and GB/s."""

_LONG_HEADERS = {
    "TC": "TC × array",
    "VC": "VC × lanes",
    "GLB": "GLB [MiB]",
    "HBM": "HBM [GiB]",
    "GB/s": "HBM [GB/s]",
    "batch": "microbatch",
}
"""The same where there is room for units."""


ORDER_WORDS = (
    "Values within 0.1 % count as equal: the smaller HBM comes first then, the smaller area, and "
    "the lower energy."
)
"""Says why a value may stand above a slightly better one; see `phaze_opt.search.ordering`."""

_CHIP = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_mib", "hbm_gib")
_TRAINING = ("microbatch", "recompute")


def accelerator_words(params: Mapping[str, Scalar]) -> str:
    """Describe the chip of a design by its parameters; see `BestDesign.params`."""
    words = (
        f"{params['num_tc']} TC of {params['pe_x']}×{params['pe_y']}, "
        f"{params['num_vc']} VC of {params['pe_vc']} lanes, "
        f"GLB {params['glb_mib']} MiB, HBM {params['hbm_gib']} GiB"
    )
    return words + _others(params, ("chip",), _CHIP)


def training_words(params: Mapping[str, Scalar]) -> str:
    """Describe the training options of a design, and what is searched of its network."""
    words = ", ".join(f"{name} {params[name]}" for name in _TRAINING if name in params)
    words += _others(params, ("training", "network"), _TRAINING)
    return words.removeprefix(", ") or "as the study says"


def _others(params: Mapping[str, Scalar], kinds: Container[AxisKind], named: Container[str]) -> str:
    """List the other parameters of some kinds."""
    return "".join(
        f", {value_of_axis(name, value)}"
        for name, value in params.items()
        if name not in named and kind_of(name) in kinds
    )


def value_words(spec: StudySpec, values: Sequence[float]) -> str:
    """Write the values of a design with their units."""
    return "; ".join(
        _value_words(spec, kind, value)
        for kind, value in zip(spec.objective_kinds, values, strict=True)
    )


def _value_words(spec: StudySpec, kind: ObjectiveKind, value: float) -> str:
    """Write one value."""
    if len(spec.runs) > 1 and kind.name != "area":
        return f"{value:.4f} × the {kind.name.replace('_', ' ')} of {spec.reference}"
    return f"{format_number(value)} {kind.unit}"


def design_words(spec: StudySpec, point: DesignPoint, metrics: Metrics) -> str:
    """Describe a trial in one line: its values or why it has none, its area and its point."""
    found = value_words(spec, metrics.values) if metrics.feasible else f"no: {metrics.reason}"
    area = "" if metrics.area_mm2 is None else f"; {metrics.area_mm2:,.1f} mm²"
    chosen = metrics.runs[0].chosen.items() if len(metrics.runs) == 1 else ()
    values = ", ".join(value_of_axis(name, value) for name, value in (*point.values, *chosen))
    return f"{found}{area}; {values}"


def objective_words(spec: StudySpec) -> str:
    """Say what a study searches for."""
    directions = [
        f"{'most' if kind.maximise else 'least'} {kind.name.replace('_', ' ')}"
        for kind in spec.objective_kinds
    ]
    words = " and ".join(directions)
    if len(spec.runs) == 1:
        return words
    return f"{words}, {spec.aggregate.replace('-', ' ')} relative to {spec.reference}"


def ratio_words(best: BestDesign) -> list[str]:
    """Compare a design with every baseline, one line each."""
    lines = []
    for baseline in best.baselines:
        ratio = best.ratio(baseline)
        run = baseline.runs[0]
        if baseline.values is None or run is None or ratio is None:
            lines.append(f"{baseline.name} fits under no training option")
            continue
        beyond = "" if baseline.within_area else ", itself above the area limit"
        at = f" at {training_words(run.params)}" if len(baseline.runs) == 1 else ""
        lines.append(
            f"{ratio:.3f} × {baseline.name} ({value_words(best.spec, baseline.values)}{at}{beyond})"
        )
    return lines


def outside_words(summary: StudySummary) -> list[str]:
    """Say which baselines no trial can find, and why, one line each."""
    return [f"{name}: {reason}" for name, reason in summary.outside.items()]


def state_words(summary: StudySummary) -> str:
    """Name the state of a study, and say how a stopped one goes on."""
    if summary.state == "stopping":
        return "stopping after the running trials"
    if summary.state == "stopped":
        return f"stopped; '{summary.next_command}' goes on"
    if summary.state == "proven":
        return "proven, no other design is better in this cost model"
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
        f"{spec.models} on {counted(spec.devices, 'device')}, {spec.cluster}, global batch "
        f"{spec.global_batch}, {spec.optimizer}",
    )
    if spec.objectives != ("throughput",) or len(spec.runs) > 1:
        add_row(table, "searched for", objective_words(spec))
    if summary.best is None:
        add_row(table, "best", "nothing feasible yet")
    else:
        _add_best(table, summary.best, summary.resolved.area_limit_mm2)
    if certified is not None:
        add_row(table, "certified", certified_words(summary, certified))
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
    for line in outside_words(summary):
        add_row(table, "outside", f"{line}; no trial can find it")
    return Group(sentence(f"{summary.name}: {state_words(summary)}", style="bold"), table)


def certified_words(summary: StudySummary, found: Enumeration) -> str:
    """Name the certified optimum of a space, and how near the best trial is to it."""
    points = f"{counted(found.points, 'design')} of the space"
    if not found.top:
        return f"none of the {points} is feasible"
    metrics = found.top[0].metrics
    value = value_words(summary.resolved.spec, metrics.values)
    words = f"no other of the {points} is better than {value}"
    if summary.best is None:
        return words
    return f"{words}; the best trial has {summary.best.metrics.value / metrics.value:.1%} of it"


def _add_best(table: Table, best: BestDesign, limit_mm2: float) -> None:
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
    area_mm2 = best.metrics.area_mm2 or 0.0
    share = area_mm2 / limit_mm2
    add_row(table, "area used", f"{share:.1%} ({area_mm2:.4g} of {limit_mm2:.4g} mm²)")
    if evaluation is not None:
        add_row(table, "bound by", binding_words(evaluation))
        add_row(table, "MFU", share_words(evaluation.mfu))
    for metrics, proofs in zip(best.metrics.runs, best.pass_proofs, strict=True):
        if proofs is not None:
            whose = "its passes" if len(best.pass_proofs) == 1 else f"{metrics.workload}: passes"
            add_row(table, whose, pass_proof_words(proofs))


class SearchedColumns:
    """Columns of a table for what a space searches: values, area, chip and options.

    Parameters
    ----------
    spec
        Of the study.
    kinds
        Objectives whose values are shown; those of the study where ``None``.
    """

    def __init__(self, spec: StudySpec, kinds: Sequence[ObjectiveKind] | None = None) -> None:
        several, own = len(spec.runs) > 1, kinds is None
        kinds = spec.objective_kinds if kinds is None else kinds
        names = [name for name, axis in spec.space.searched.items() if len(axis.values) > 1]
        known = {name for each in _CHIP_ORDER.values() for name in each}
        self._values = len(kinds)
        self._has_area = all(kind.name != "area" for kind in kinds)
        self._columns = [column for column, of in _CHIP_ORDER.items() if set(of) & set(names)]
        self._others = [name for name in names if name not in known]
        units = ["relative" if several and one.name != "area" else one.unit for one in kinds]
        area = ["mm²"] if self._has_area else []
        self.headers = [f">{one}" for one in (*units, *area, *self._columns, *self._others)]
        values = [value_header(spec, place) for place in range(len(kinds))] if own else units
        names = [_LONG_HEADERS.get(one, one) for one in self._columns]
        names += [axis_words(one) for one in self._others]
        self.named_headers = (*values, *(["area [mm²]"] if area else []), *names)

    def cells(
        self,
        point: DesignPoint | None,
        metrics: Metrics | None,
        values: Sequence[float] | None = None,
    ) -> list[str]:
        """Return the cells of one design, those that are not known as dashes.

        Parameters
        ----------
        point, metrics
            The design.
        values
            Of the objectives that are shown; those of the metrics where ``None``.
        """
        cells = ["–"] * self._values
        if metrics is not None and metrics.feasible:
            shown = metrics.values if values is None else values
            cells = [format_number(value) for value in shown]
        if self._has_area:
            area_mm2 = None if metrics is None else metrics.area_mm2
            cells.append("–" if area_mm2 is None else f"{area_mm2:,.1f}")
        if point is None:
            return cells + ["–"] * (len(self._columns) + len(self._others))
        known = point.by_name
        for column in self._columns:
            parts = [str(known[name]) for name in _CHIP_ORDER[column] if name in known]
            cells.append("×".join(parts))
        return cells + [str(known[name]) for name in self._others]


def trials_table(spec: StudySpec, trials: Iterable[TrialRecord]) -> RenderableType:
    """List trials, one line each: the values, the area, and what is searched."""
    columns = SearchedColumns(spec)
    rows = [
        (str(trial.number), _state_words(trial), *columns.cells(trial.point, trial.metrics))
        for trial in trials
    ]
    return fitted((">trial", "state", *columns.headers), rows)


def _state_words(trial: TrialRecord) -> str:
    """Name the state of a trial; of an infeasible one the limit that rules it out."""
    return infeasible_words(trial) if trial.kind == "infeasible" else trial.kind


def infeasible_words(trial: TrialRecord) -> str:
    """Say which limit rules a trial out."""
    limit = None if trial.metrics is None else trial.metrics.limit
    words = {"area": "over area", "memory": "not fitting", None: "infeasible"}
    return words.get(limit, f"no: {limit}")


def value_header(spec: StudySpec, place: int) -> str:
    """Name the values of an objective with their unit; of several workloads they are ratios."""
    kind = spec.objective_kinds[place]
    ratio = len(spec.runs) > 1 and kind.name != "area"
    unit = f"× {spec.reference}" if ratio else kind.unit
    return f"{kind.name.replace('_', ' ')} [{unit}]"


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

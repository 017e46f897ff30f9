"""What people see of a study, as data: the same for our page, the report, the note and the plots.

Sentences are plain text; whoever writes HTML or Markdown of them makes them harmless there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from phaze_opt.evaluation import Evaluation
from phaze_opt.hardware.area import AreaModel
from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.reproducing import reproduce_commands, study_file, verify_commands
from phaze_opt.report.study_words import (
    accelerator_words,
    effort_words,
    objective_words,
    outside_words,
    proof_words,
    state_words,
    training_words,
    trial_state_words,
    trial_words,
    value_words,
)
from phaze_opt.report.words import (
    binding_words,
    device_words,
    memory_words,
    mfu_words,
    microbatch_words,
    padding_words,
    pass_proof_words,
    placement_words,
    power_words,
    rate_words,
    share_words,
    time_words,
)
from phaze_opt.search.axes import Scalar
from phaze_opt.search.baselines import BaselineResult
from phaze_opt.search.enumerating import best_of_enumeration, stored_enumeration
from phaze_opt.search.exhaustive import Enumeration
from phaze_opt.search.results import BestDesign, StudySummary
from phaze_opt.search.space import DesignPoint
from phaze_opt.search.store.artifacts import ARTIFACT_KEY
from phaze_opt.search.store.damage import damages
from phaze_opt.search.store.failures import database_errors
from phaze_opt.search.study import Study
from phaze_opt.search.trials import TrialRecord
from phaze_opt.units import counted, format_seconds

MOST_TRIALS = 200
"""Trials that a page lists: the best ones, and below them the latest of the others."""

QUESTION = "Which accelerator "
"""What the question of every study begins with."""

_LATEST = 20

_AREA_WORDS: Mapping[AreaModel, str] = {
    "phaze-22nm": "a relative budget (no network, PHY or control), not the size of a die",
    "chip": "a relative budget, with estimates for control, HBM and network, not a die's size",
}


@dataclass(frozen=True)
class Fact:
    """A name with what is to be said under it."""

    name: str
    text: str


@dataclass(frozen=True)
class ComparedDesign:
    """One line of the comparison of the best design with others.

    Attributes
    ----------
    kind
        ``best`` of the trials, ``optimum`` of an enumeration, or ``baseline``.
    values, value
        By the objectives of the study, in words and the first as a number; ``None`` where the
        design trains the model under no option.
    ratio
        Of the best design's first value to this one's.
    area_mm2
        Under the area model of the study.
    chip
        Cores, memories and training options in words.
    note
        What else is to be known of it.
    evaluations
        By workload; empty where none is stored.
    """

    kind: str
    name: str
    values: str | None
    value: float | None
    ratio: float | None
    area_mm2: float | None
    chip: str
    note: str = ""
    evaluations: tuple[Evaluation | None, ...] = ()


@dataclass(frozen=True)
class TrialLine:
    """A trial in the table of trials.

    Attributes
    ----------
    again
        Number of later trials of the same design, which have no line of their own.
    reason
        Why it is not feasible.
    """

    number: int
    again: int
    state: str
    kind: str
    cells: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Certificate:
    """What an enumeration proved of the space.

    Attributes
    ----------
    optimum
        The best design; ``None`` where nothing is feasible.
    headers, top
        The first designs of the proven order: columns, and rows of cells.
    commands
        Lines for a shell that write the certificate and check it.
    """

    found: Enumeration
    optimum: BestDesign | None
    headers: tuple[str, ...]
    top: tuple[tuple[str, ...], ...]
    commands: tuple[str, ...]

    checked_by = "To check it, on any machine, with nothing but the certificate and this program"

    @property
    def words(self) -> str:
        """What is proven, and how."""
        found = self.found
        best = "no design is feasible" if self.optimum is None else "no other design is better"
        return (
            f"Certified: {best} in cost model version {found.version}. Of {found.points:,} designs "
            f"{found.bounded:,} are bounded below the best ones, and {found.evaluated:,} are "
            f"evaluated, in {format_seconds(found.wall_s)}{self._when}."
        )

    @property
    def _when(self) -> str:
        """When it was proven, where that is known."""
        if self.found.finished_s is None:
            return ""
        finished = datetime.fromtimestamp(self.found.finished_s, UTC)
        return f", on {finished:%Y-%m-%d} at {finished:%H:%M} UTC"


@dataclass(frozen=True)
class StudyView:
    """A study as people see it.

    Attributes
    ----------
    study_id
        Optuna's number, which its dashboard's addresses hold.
    question, state
        In words.
    headline, answer
        The value of the best design, and the design; empty before the first feasible trial.
    compared
        The best design, the certified optimum and the baselines.
    binding
        What binds the best design, and where its time and memory go.
    effort
        How the answer was found.
    commands, file
        How it is found again: lines for a shell, and the study file.
    files
        Names of the files that the best trial has, and their addresses in the dashboard.
    headers, trials
        Columns of numbers and words with their units, and the trials, the best first.
    """

    name: str
    study_id: int
    summary: StudySummary
    question: str
    state: str
    headline: str
    answer: tuple[str, ...]
    compared: tuple[ComparedDesign, ...]
    binding: tuple[Fact, ...]
    effort: tuple[Fact, ...]
    commands: tuple[str, ...]
    file: str
    files: tuple[tuple[str, str], ...]
    headers: tuple[str, ...]
    trials: tuple[TrialLine, ...]
    certificate: Certificate | None

    @property
    def best(self) -> BestDesign | None:
        """The best design of the trials."""
        return self.summary.best


def view_of(study: Study, most_trials: int = MOST_TRIALS) -> StudyView:
    """Read a study, and say all that a page shows of it.

    Parameters
    ----------
    study
        The study; its last state is read.
    most_trials
        Lines of the table of trials.
    """
    summary = study.summary()
    certificate = _certificate(study)
    best = summary.best
    columns = SearchedColumns(summary.resolved.spec)
    return StudyView(
        name=summary.name,
        study_id=study.optuna_id,
        summary=summary,
        question=_question(summary),
        state=state_words(summary),
        headline="" if best is None else value_words(best.spec, best.metrics.values),
        answer=() if best is None else tuple(_answer(best)),
        compared=tuple(_compared(summary, study.baselines(), certificate)),
        binding=() if best is None else tuple(_binding(best)),
        effort=tuple(_effort(summary)),
        commands=tuple(reproduce_commands(summary)),
        file=study_file(summary.resolved.spec),
        files=() if best is None else tuple(_files(study, best.number)),
        headers=columns.named_headers,
        trials=tuple(_trial_lines(summary.records, columns, most_trials)),
        certificate=certificate,
    )


def _files(study: Study, number: int | None) -> list[tuple[str, str]]:
    """Name the artifacts of a trial, as Optuna stores them, with their addresses."""
    if number is None:
        return []
    optuna, study_id = study.storage.optuna, study.optuna_id
    with database_errors(study.storage.shown), damages(f"Trial {number} of the study"):
        trial_id = optuna.get_trial_id_from_study_id_trial_number(study_id, number)
        attributes = optuna.get_trial_system_attrs(trial_id)
        metas = [
            json.loads(value) for key, value in attributes.items() if key.startswith(ARTIFACT_KEY)
        ]
        return sorted(
            (str(meta["filename"]), f"/artifacts/{study_id}/{trial_id}/{meta['artifact_id']}")
            for meta in metas
            if meta is not None
        )


def _question(summary: StudySummary) -> str:
    """Write the question that a study asks."""
    spec = summary.resolved.spec
    what = f"{QUESTION}has the {objective_words(spec)}, training {spec.models}"
    if spec.objectives == ("throughput",) and len(spec.runs) == 1:
        what = f"{QUESTION}trains {spec.models} fastest"
    devices = counted(spec.devices, "device")
    return (
        f"{what} on {devices} ({spec.cluster}, global batch {spec.global_batch:,}, "
        f"{spec.optimizer}) within {summary.resolved.area_limit_mm2:.4g} mm²?"
    )


def _answer(best: BestDesign) -> list[str]:
    """Describe the best design, one line per part."""
    lines = [accelerator_words(best.params), training_words(best.params)]
    evaluation = _only_evaluation(best)
    if evaluation is not None and evaluation.placement is not None:
        lines.append(placement_words(evaluation.placement))
    if best.front:
        are = "is" if len(best.front) == 1 else "are"
        lines.append(f"{counted(len(best.front), 'design')} {are} on the front")
    return lines


def _only_evaluation(best: BestDesign) -> Evaluation | None:
    """Return the evaluation of the best design where there is one workload, and it is readable."""
    return best.evaluation if len(best.evaluations) == 1 else None


def _compared(
    summary: StudySummary,
    baselines: Sequence[BaselineResult],
    certificate: Certificate | None,
) -> list[ComparedDesign]:
    """Put the best design beside the certified optimum and the baselines."""
    best, found = summary.best, []
    if best is not None:
        found.append(_design_line("best", f"best of the trials (trial {best.number})", best, best))
    if certificate is not None and certificate.optimum is not None:
        found.append(_design_line("optimum", "certified optimum", certificate.optimum, best))
    for baseline in baselines:
        found.append(_baseline_line(summary, baseline))
    return found


def _design_line(
    kind: str, name: str, design: BestDesign, best: BestDesign | None
) -> ComparedDesign:
    """Describe a design that the search or an enumeration found."""
    return ComparedDesign(
        kind=kind,
        name=name,
        values=value_words(design.spec, design.metrics.values),
        value=design.metrics.value,
        ratio=None if best is None else best.metrics.value / design.metrics.value,
        area_mm2=design.metrics.area_mm2,
        chip=f"{accelerator_words(design.params)}; {training_words(design.params)}",
        note="no design of the space is better in this cost model" if kind == "optimum" else "",
        evaluations=design.evaluations,
    )


def _baseline_line(summary: StudySummary, baseline: BaselineResult) -> ComparedDesign:
    """Describe a baseline at its best."""
    spec, best = summary.resolved.spec, summary.best
    notes = [] if baseline.within_area else ["itself above the area limit"]
    outside = summary.outside.get(baseline.name)
    notes += [] if outside is None else [f"outside the space: {outside}"]
    runs = [run for run in baseline.runs if run is not None]
    chip = ""
    if runs:
        params: Mapping[str, Scalar] = runs[0].params
        chip = accelerator_words(params)
        chip += f"; {training_words(params)}" if len(baseline.runs) == 1 else ""
    known = baseline.values is not None
    return ComparedDesign(
        kind="baseline",
        name=baseline.name,
        values=value_words(spec, baseline.values) if baseline.values is not None else None,
        value=baseline.values[0] if baseline.values is not None else None,
        ratio=None if best is None else best.ratio(baseline),
        area_mm2=baseline.area_mm2,
        chip=chip,
        note="; ".join(notes if known else ["fits under no training option", *notes]),
        evaluations=tuple(None if run is None else run.evaluation for run in baseline.runs),
    )


def _binding(best: BestDesign) -> list[Fact]:
    """Say what binds the best design, for each workload."""
    facts = []
    several = len(best.evaluations) > 1
    for metrics, evaluation, proofs in zip(
        best.metrics.runs, best.evaluations, best.pass_proofs, strict=True
    ):
        whose = f"{metrics.workload}: " if several else ""
        if evaluation is None:
            facts.append(Fact(f"{whose}evaluation", "is damaged or of another version"))
            continue
        facts += [Fact(f"{whose}{name}", text) for name, text in _evaluation_facts(evaluation)]
        if proofs is not None:
            facts.append(Fact(f"{whose}schedules of its passes", pass_proof_words(proofs)))
    return facts


def _evaluation_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Say what binds one workload."""
    facts = [("bound by", binding_words(evaluation))]
    placement, time_s = evaluation.placement, evaluation.time_per_batch_s
    if placement is None or time_s is None:
        return facts
    facts += [
        ("time of a batch", f"{format_seconds(time_s)}: {time_words(evaluation)}"),
        ("placement", placement_words(placement)),
        ("microbatches", microbatch_words(placement)),
        ("devices", device_words(placement, evaluation.unused_devices)),
        ("memory", memory_words(placement)),
        ("MFU", mfu_words(evaluation)),
        ("per device", rate_words(evaluation)),
        ("power", power_words(evaluation)),
    ]
    if evaluation.padding_samples:
        facts.append(("padding", padding_words(evaluation.padding_samples)))
    return facts


def _effort(summary: StudySummary) -> list[Fact]:
    """Say how the answer was found, and what is known of it."""
    resolved, search = summary.resolved, summary.resolved.spec.search
    facts = [
        Fact("trials", trial_words(summary)),
        Fact("time taken", effort_words(summary)),
        Fact("cached", f"{share_words(summary.cached_share)} of the evaluations"),
        Fact("proven", proof_words(summary)),
        *(Fact("failed", reason) for reason in summary.failures),
        *(Fact("outside", f"{line}; no trial can find it") for line in outside_words(summary)),
    ]
    return [
        *facts,
        Fact(
            "sampler", f"{search.sampler}, seed {search.seed}; one worker gives these trials again"
        ),
        Fact("cost model", f"version {resolved.cost_model_version}"),
        Fact("hash of the study", resolved.hash),
        Fact("area", _AREA_WORDS[resolved.spec.area.model]),
    ]


def _certificate(study: Study) -> Certificate | None:
    """Read the stored enumeration of a study's space; ``None`` where there is none."""
    found = stored_enumeration(study)
    if found is None:
        return None
    columns = SearchedColumns(study.resolved.spec)
    rows = [columns.cells(DesignPoint(one.point), one.metrics) for one in found.top]
    return Certificate(
        found,
        best_of_enumeration(study, found),
        columns.named_headers,
        tuple(map(tuple, rows)),
        tuple(verify_commands(study.name)),
    )


def ranked_trials(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the feasible trials by the order of designs."""
    ranked = [(trial.rank.key, trial) for trial in records if trial.rank is not None]
    return [trial for _, trial in sorted(ranked, key=lambda pair: (pair[0], pair[1].number))]


def distinct_designs(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the first trial of every feasible design, by the order of designs."""
    first: dict[DesignPoint | None, TrialRecord] = {}
    for trial in ranked_trials(records):
        first.setdefault(trial.point, trial)
    return list(first.values())


def _trial_lines(
    records: Sequence[TrialRecord], columns: SearchedColumns, most: int
) -> list[TrialLine]:
    """List the feasible trials by the order of designs, then the latest of the others."""
    trials_of = Counter(trial.point for trial in records if trial.rank is not None)
    others = [trial for trial in reversed(records) if trial.rank is None]
    shown = distinct_designs(records)[: max(most - _LATEST, most - len(others))]
    return [
        TrialLine(
            trial.number,
            trials_of[trial.point] - 1 if trial.rank is not None else 0,
            trial_state_words(trial),
            trial.kind,
            tuple(columns.cells(trial.point, trial.metrics)),
            (trial.metrics.reason or "") if trial.metrics is not None else "",
        )
        for trial in [*shown, *others[: most - len(shown)]]
    ]

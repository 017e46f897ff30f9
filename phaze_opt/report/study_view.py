"""What people see of a study, as data: the same for our page, the report, the note and the plots.

Sentences are plain text; whoever writes HTML or Markdown of them makes them harmless there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phaze_opt.choices import AreaModel
from phaze_opt.evaluation import Evaluation
from phaze_opt.report.certified import CertifiedAnswer, ProvenFront, certified_answer, proven_front
from phaze_opt.report.compared_designs import ComparedDesign, compared_designs
from phaze_opt.report.design_columns import SearchedColumns
from phaze_opt.report.reproducing import reproduce_commands, study_file
from phaze_opt.report.study_words import (
    accelerator_words,
    cached_words,
    effort_words,
    models_words,
    objective_words,
    outside_words,
    proof_words,
    state_words,
    training_words,
    trial_words,
    value_words,
)
from phaze_opt.report.trial_lines import TrialLine, trial_lines
from phaze_opt.report.words import (
    bill_facts,
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
    time_words,
)
from phaze_opt.store.artifacts import ARTIFACT_KEY
from phaze_opt.store.damage import damages
from phaze_opt.store.failures import database_errors
from phaze_opt.store.publication import publication_mark
from phaze_opt.study.best_design import BestDesign
from phaze_opt.study.neighbourhood import DesignStep, evaluated_steps, known_steps
from phaze_opt.study.standing import Standing
from phaze_opt.study.study import Study
from phaze_opt.study.summary import StudySummary, SummaryParts, summarise
from phaze_opt.study.trial_book import TrialBook
from phaze_opt.units import counted, format_seconds

MOST_TRIALS = 200
"""Trials that a page lists: the best ones, and below them the latest of the others."""

_SHOWN_DESIGNS = 20

QUESTION = "Which accelerator "
"""What the question of every study begins with."""

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
    book
        The trials.
    hovers
        What is said of a trial where the pointer is, by number, as far as it was asked for.
    headers, trials
        Columns of numbers and words with their units, and the trials, the best first.
    certificate, front
        What is proven of the whole space.
    steps
        What one step from the best design brings on each axis.
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
    book: TrialBook
    hovers: dict[int, str]
    headers: tuple[str, ...]
    trials: tuple[TrialLine, ...]
    certificate: CertifiedAnswer | None
    front: ProvenFront | None
    steps: tuple[DesignStep, ...]

    @property
    def best(self) -> BestDesign | None:
        """The best design of the trials."""
        return self.summary.best


@dataclass(frozen=True)
class _OfTheBest:
    """What a page shows of the best design, which changes seldom."""

    compared: tuple[ComparedDesign, ...]
    binding: tuple[Fact, ...]
    files: tuple[tuple[str, str], ...]
    certificate: CertifiedAnswer | None
    front: ProvenFront | None
    steps: tuple[DesignStep, ...]


class _Kept(SummaryParts):
    """What a page keeps of a study."""

    def __init__(self, study: Study, book: TrialBook) -> None:
        super().__init__(study)
        self._book = book
        self._outside: dict[str, str] | None = None
        self._designs: dict[object, BestDesign | None] = {}
        self.of_the_best: dict[object, _OfTheBest] = {}

    def standing(self) -> Standing:
        """Read the trials that changed."""
        return self._book.read()

    def design(self, standing: Standing) -> BestDesign | None:
        """Return the best design; what belongs to it is forgotten if it may be another one."""
        study = self._study
        # The end of a run adds to the best design, and then the study is written anew.
        written = (
            None if standing.tally.count("running") else publication_mark(study.storage, study.uid)
        )
        best = None if standing.best is None else standing.best.number
        key = (best, tuple(trial.number for trial in standing.front), written)
        if key not in self._designs:
            self._designs, self.of_the_best = {key: super().design(standing)}, {}
        return self._designs[key]

    def outside(self) -> dict[str, str]:
        """Return why no trial can find a baseline, which never changes."""
        if self._outside is None:
            self._outside = super().outside()
        return self._outside

    def codes(self) -> dict[str, int]:
        """Count nothing: no page shows it, and it takes a look at all tickets."""
        return {}


class LiveView:
    """Keeps what a page shows of a study, and reads only what is new.

    Parameters
    ----------
    study, most_trials, evaluate
        See `view_of`.
    """

    def __init__(
        self, study: Study, most_trials: int = MOST_TRIALS, evaluate: bool = False
    ) -> None:
        self._study, self._most, self._evaluate = study, most_trials, evaluate
        self._book = TrialBook(study, max(most_trials, _SHOWN_DESIGNS))
        self._kept = _Kept(study, self._book)
        self._hovers: dict[int, str] = {}

    def view(self) -> StudyView:
        """Read what is new, and say all that a page shows."""
        study, book, kept = self._study, self._book, self._kept
        summary = summarise(study, kept)
        parts = kept.of_the_best.get(summary.state)
        if parts is None:
            parts = _of_the_best(study, summary, evaluate=self._evaluate)
            kept.of_the_best = {summary.state: parts}
        best, columns = summary.best, SearchedColumns(summary.resolved.spec)
        return StudyView(
            name=summary.name,
            study_id=study.optuna_id,
            summary=summary,
            question=_question(summary),
            state=state_words(summary),
            headline="" if best is None else value_words(best.spec, best.metrics.values),
            answer=() if best is None else tuple(_answer(best)),
            **vars(parts),
            effort=tuple(_effort(summary)),
            commands=tuple(reproduce_commands(summary)),
            file=study_file(summary.resolved.spec),
            book=book,
            hovers=self._hovers,
            headers=columns.named_headers,
            trials=tuple(trial_lines(book, columns, self._most)),
        )


def view_of(study: Study, most_trials: int = MOST_TRIALS, *, evaluate: bool = False) -> StudyView:
    """Read a study, and say all that a page shows of it.

    Parameters
    ----------
    study
        The study; its last state is read.
    most_trials
        Lines of the table of trials.
    evaluate
        Whether steps from the best design that nobody has evaluated yet are evaluated, and stored
        where the database can be written.
    """
    return LiveView(study, most_trials, evaluate).view()


def _of_the_best(study: Study, summary: StudySummary, *, evaluate: bool) -> _OfTheBest:
    """Read what a page shows of the best design."""
    certificate, best = certified_answer(study), summary.best
    return _OfTheBest(
        compared=tuple(compared_designs(summary, study.baselines(), certificate)),
        binding=() if best is None else tuple(_binding(best)),
        files=() if best is None else tuple(_files(study, best.number)),
        certificate=certificate,
        front=proven_front(study),
        steps=() if best is None else _steps(study, best, evaluate=evaluate),
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


def _steps(study: Study, best: BestDesign, *, evaluate: bool) -> tuple[DesignStep, ...]:
    """Return the steps from the best design, as they are known or evaluated."""
    if evaluate:
        return evaluated_steps(study, study.evaluator, best)
    return known_steps(study, best)


def _question(summary: StudySummary) -> str:
    """Write the question that a study asks."""
    spec = summary.resolved.spec
    what = f"{QUESTION}has the {objective_words(spec)}, training {models_words(spec)}"
    if spec.objectives == ("throughput",) and len(spec.runs) == 1:
        what = f"{QUESTION}trains {models_words(spec)} fastest"
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
    return facts if evaluation.bill is None else facts + bill_facts(evaluation.bill)


def _effort(summary: StudySummary) -> list[Fact]:
    """Say how the answer was found, and what is known of it."""
    resolved, search = summary.resolved, summary.resolved.spec.search
    model = resolved.spec.area.model
    facts = [
        Fact("trials", trial_words(summary)),
        Fact("time taken", effort_words(summary)),
        Fact("cached", cached_words(summary)),
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
        Fact("area", f"{model}: {_AREA_WORDS[model]}"),
    ]

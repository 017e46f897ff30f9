"""The parts of a run: every search and every evaluation that the results are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.whole_space.robustness import robustness_of_study
from studies.paper.ablations import ABLATIONS, AS_PUBLISHED, Ablation
from studies.paper.comparison import PLACEMENTS, Comparison, PlacedBy, Trained, train
from studies.paper.published import PlacedAsPublished, place_as_published
from studies.paper.searches import ProvenFront, Winner, proven_front, search, study_in
from studies.paper.settings import (
    BASELINES,
    Scope,
    alone_study,
    built_area_study,
    common_study,
    expert_study,
    paper_study,
    today_study,
)
from studies.paper.toggles import WAYS, scheduled
from studies.work import Work

ALONE, OURS, COMMON = "alone", "ours", "common"
"""Names of the chips that are searched."""


@dataclass(frozen=True)
class Runs:
    """The answer of a part that evaluates."""

    runs: tuple[Trained, ...]


@dataclass(frozen=True)
class Placed:
    """The answer of a part that places by the published cost."""

    runs: tuple[PlacedAsPublished, ...]


@dataclass(frozen=True)
class Varied:
    """The winner under another constant of the cost model.

    Attributes
    ----------
    loss
        By how much it is below the best design; ``None`` where it does not fit.
    changes
        Axes on which the best design is another one, with its values.
    """

    factor: str
    scale: float
    stays: bool
    loss: float | None
    changes: Mapping[str, str]


@dataclass(frozen=True)
class Robust:
    """How the winner of a model does under other constants."""

    model: str
    variants: tuple[Varied, ...]


@dataclass(frozen=True)
class Changed:
    """A model in a variant of the setting: its searched chip, and known ones beside it."""

    winner: Winner
    runs: tuple[Trained, ...]


@dataclass(frozen=True)
class Results(Comparison):
    """Everything that was found, by model where it belongs to one; ``runs`` is of the comparison.

    Attributes
    ----------
    ours, alone, expert
        Chips searched with placement, without, and under the expert placement.
    common
        One chip for all models.
    ablations, published
        By ablation, then by model.
    schedules
        By the way to schedule.
    placed
        By the published cost.
    built
        Chips searched under the area model ``chip``.
    fronts
        Of throughput and area, proven.
    today
        In today's setting.
    cpu_s
        Processor seconds by part.
    """

    ours: Mapping[str, Winner]
    alone: Mapping[str, Winner]
    expert: Mapping[str, Winner]
    common: Winner
    ablations: Mapping[str, Mapping[str, Changed]]
    published: Mapping[str, Mapping[str, Changed]]
    schedules: Mapping[str, tuple[Trained, ...]]
    placed: tuple[PlacedAsPublished, ...]
    built: Mapping[str, Changed]
    fronts: Mapping[str, ProvenFront]
    robust: tuple[Robust, ...]
    today: Mapping[str, Changed]
    cpu_s: Mapping[str, float]


def run_everything(work: Work, scope: Scope) -> Results:
    """Answer every part that is not answered yet, the most important ones first."""
    studies = {model: paper_study(scope, model) for model in scope.models}
    ours = {model: search(work, spec) for model, spec in studies.items()}
    alone = {model: search(work, alone_study(spec)) for model, spec in studies.items()}
    common = search(work, common_study(scope))
    runs: list[Trained] = []
    for model, spec in studies.items():
        searched = {
            ALONE: (alone[model].accelerator, False),
            OURS: (ours[model].accelerator, True),
            COMMON: (common.accelerator, True),
        }
        runs += _compare(work, spec, f"compare-{model}", _known(BASELINES) | searched)
    ablated = {model: studies[model] for model in scope.ablated}
    return Results(
        scope=scope,
        ours=ours,
        alone=alone,
        common=common,
        runs=tuple(runs),
        schedules=_schedules(work, ablated, ours),
        placed=tuple(
            placed for model, spec in ablated.items() for placed in _placed(work, spec, ours[model])
        ),
        published={change.name: _changed(work, ablated, change) for change in AS_PUBLISHED},
        ablations={
            change.name: _changed(work, ablated, change) for change in ABLATIONS[: scope.options]
        },
        today={model: _today(work, scope, model) for model in scope.today},
        built={model: _built(work, studies[model]) for model in scope.built},
        fronts={model: proven_front(work, studies[model]) for model in scope.fronts},
        expert={model: search(work, expert_study(spec)) for model, spec in ablated.items()},
        robust=tuple(_robust(work, studies[model]) for model in scope.robust),
        cpu_s=work.cpu_s,
    )


def _known(names: Iterable[str]) -> dict[str, tuple[Accelerator, bool]]:
    """Return known chips, which keep their HBM."""
    return {name: (load_accelerator(name), True) for name in names}


def _compare(
    work: Work,
    spec: StudySpec,
    part: str,
    chips: Mapping[str, tuple[Accelerator, bool]],
    placements: tuple[PlacedBy, ...] = PLACEMENTS,
) -> tuple[Trained, ...]:
    """Evaluate a model on some chips, each under every way to place it.

    Parameters
    ----------
    work, spec, part
        The study of the model, and the name of the part.
    chips
        By name, each with whether it keeps its HBM.
    placements
        Ways to place it.
    """

    def evaluated() -> Runs:
        study = study_in(work, spec)
        (workload,) = study.workloads()
        return Runs(
            tuple(
                train(study, workload, name, chip, placed_by, own_hbm=own_hbm)
                for name, (chip, own_hbm) in chips.items()
                for placed_by in placements
            )
        )

    return work.answer(part, [spec, chips, placements], Runs, evaluated).runs


def _changed(
    work: Work, studies: Mapping[str, StudySpec], ablation: Ablation
) -> dict[str, Changed]:
    """Search and compare under an ablation."""
    placements = PLACEMENTS if ablation.has_experts else PLACEMENTS[1:]
    answers = {}
    for model, spec in studies.items():
        study = ablation.study(spec)
        winner = search(work, study)
        chips = _known(BASELINES[:2]) | {OURS: (winner.accelerator, True)}
        part = f"compare-{study.name}"
        answers[model] = Changed(winner, _compare(work, study, part, chips, placements))
    return answers


def _built(work: Work, spec: StudySpec) -> Changed:
    """Search a chip under the area model of built chips, and train its model on it."""
    study = built_area_study(spec)
    winner = search(work, study)
    chips = {OURS: (winner.accelerator, True)}
    return Changed(winner, _compare(work, study, f"compare-{study.name}", chips, ("solve",)))


def _today(work: Work, scope: Scope, model: str) -> Changed:
    """Search a chip in today's setting, and compare it with the one that has its area."""
    spec = today_study(scope, model)
    winner = search(work, spec)
    chips = _known(BASELINES[1:]) | {OURS: (winner.accelerator, True)}
    return Changed(winner, _compare(work, spec, f"compare-{spec.name}", chips))


def _schedules(
    work: Work, studies: Mapping[str, StudySpec], ours: Mapping[str, Winner]
) -> dict[str, tuple[Trained, ...]]:
    """Train some models on known chips and on the searched one, scheduled in other ways."""
    answers = {}
    for number, way in enumerate(WAYS):
        runs: list[Trained] = []
        for model, spec in studies.items():
            chips = _known(BASELINES[:2]) | {OURS: (ours[model].accelerator, True)}
            with scheduled(way):
                runs += _compare(work, spec, f"schedules-{number}-{model}", chips, ("solve",))
        answers[way] = tuple(runs)
    return answers


def _placed(work: Work, spec: StudySpec, winner: Winner) -> tuple[PlacedAsPublished, ...]:
    """Place a model by the published cost on known chips and on the searched one."""
    chips = _known(BASELINES[:2]) | {OURS: (winner.accelerator, True)}

    def evaluated() -> Placed:
        study = study_in(work, spec)
        (workload,) = study.workloads()
        return Placed(
            tuple(
                place_as_published(study, workload, name, chip, own_hbm=own_hbm)
                for name, (chip, own_hbm) in chips.items()
            )
        )

    return work.answer(f"published-{spec.name}", [spec, chips], Placed, evaluated).runs


def _robust(work: Work, spec: StudySpec) -> Robust:
    """Search a chip again under other constants of the cost model."""

    def varied() -> Robust:
        robustness = robustness_of_study(study_in(work, spec), workers=work.workers)
        return Robust(
            str(spec.model),
            tuple(
                Varied(
                    answer.variation.factor,
                    answer.variation.scale,
                    answer.winner_stays,
                    answer.loss,
                    {
                        name: str(new)
                        for name, (_, new) in answer.changes(robustness.winner).items()
                    },
                )
                for answer in robustness.variants
            ),
        )

    return work.answer(f"robust-{spec.name}", spec, Robust, varied)

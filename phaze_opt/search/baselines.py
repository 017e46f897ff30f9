"""Known accelerators to compare with, each at its best over all training options."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.evaluation import Evaluation
from phaze_opt.search.frozen import Baseline, ResolvedStudy
from phaze_opt.search.objective import evaluation_key
from phaze_opt.search.ordering import best_of
from phaze_opt.search.space import DesignPoint, point_of_accelerator, training_choices
from phaze_opt.search.store.caches import find_evaluations
from phaze_opt.search.store.storage import Storage
from phaze_opt.search.trials import Metrics, metrics_of
from phaze_opt.training import Training


@dataclass(frozen=True)
class BaselineResult:
    """A baseline at its best over microbatch, recompute and placement, with its own HBM.

    Attributes
    ----------
    point, metrics, evaluation
        ``None`` where the baseline fits under no training option.
    within_area
        Whether its area is within the limit of the study.
    """

    name: str
    area_mm2: float
    within_area: bool
    point: DesignPoint | None
    metrics: Metrics | None
    evaluation: Evaluation | None

    @property
    def throughput_samples_per_s(self) -> float:
        """Of the best option; 0 where none fits."""
        return 0.0 if self.metrics is None else self.metrics.throughput_samples_per_s


def baseline_trainings(
    study: ResolvedStudy, baseline: Baseline
) -> dict[str, tuple[DesignPoint, Training]]:
    """Return every training option of a baseline by the key of its evaluation."""
    result = {}
    for microbatch, recompute in training_choices(study.spec.space):
        training = study.training(microbatch, recompute)
        point = point_of_accelerator(baseline.accelerator, microbatch, recompute)
        result[evaluation_key(study, baseline.accelerator, training)] = (point, training)
    return result


def find_baselines(study: ResolvedStudy, storage: Storage) -> list[BaselineResult]:
    """Return the baselines that are evaluated already, in the order of the spec."""
    options = {baseline.name: baseline_trainings(study, baseline) for baseline in study.baselines}
    evaluations = find_evaluations(storage, [key for keys in options.values() for key in keys])
    return [
        _best_option(study, baseline, options[baseline.name], evaluations)
        for baseline in study.baselines
        if options[baseline.name].keys() <= evaluations.keys()
    ]


def _best_option(
    study: ResolvedStudy,
    baseline: Baseline,
    options: dict[str, tuple[DesignPoint, Training]],
    evaluations: dict[str, Evaluation],
) -> BaselineResult:
    """Choose the best training option by the order of designs."""
    area_mm2 = baseline.accelerator.area_under(study.spec.area.model)
    feasible = []
    for key, (point, _) in options.items():
        metrics = metrics_of(evaluations[key], key, True, area_mm2, 0.0)
        if metrics.feasible:
            feasible.append((metrics.rank(point), (point, metrics, evaluations[key])))
    best = best_of(feasible)
    within = area_mm2 <= study.area_limit_mm2
    return BaselineResult(baseline.name, area_mm2, within, *(best or (None, None, None)))

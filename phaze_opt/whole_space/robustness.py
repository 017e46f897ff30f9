"""How far the best design depends on uncertain constants of the cost model.

The space is enumerated again with a smaller and a larger value of each constant, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phaze_opt.errors import InputError
from phaze_opt.spec.axes import Scalar
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.variations import Variation, variations_of, varied
from phaze_opt.study.objective import evaluator_of
from phaze_opt.study.study import Study
from phaze_opt.study.trials import Metrics
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import enumerate_study, ranked_to_json_dict
from phaze_opt.whole_space.exhaustive import EnumerationProgress, RankedDesign


@dataclass(frozen=True)
class VariedAnswer:
    """The best design under a variation, beside the winner of the study.

    Attributes
    ----------
    variation
        The varied constant with its factor.
    applied
        The factor that was applied; it is smaller where an efficiency would exceed 1.
    best
        ``None`` if no design is feasible.
    winner
        Metrics of the study's winner under the variation.
    winner_stays
        Whether the winner is the best design under the variation.
    """

    variation: Variation
    applied: float
    best: RankedDesign | None
    winner: Metrics
    winner_stays: bool

    @property
    def loss(self) -> float | None:
        """Relative loss of the winner against the best design; ``None`` if it is infeasible.

        It may be negative by less than a bin of values, in which a smaller design comes first.
        """
        if self.best is None or not self.winner.feasible:
            return None
        return 1.0 - self.winner.value / self.best.metrics.value

    def changes(self, winner: RankedDesign) -> Mapping[str, tuple[Scalar, Scalar]]:
        """Return the axes on which the best design differs from the winner, with both values."""
        if self.best is None:
            return {}
        now = dict(self.best.point)
        return {name: (value, now[name]) for name, value in winner.point if now[name] != value}


@dataclass(frozen=True)
class Robustness:
    """The winner of a study, and the answers of all variations."""

    winner: RankedDesign
    variants: tuple[VariedAnswer, ...]
    version: str

    @property
    def stays(self) -> int:
        """Number of variations under which the winner stays the best design."""
        return sum(variant.winner_stays for variant in self.variants)


def robustness_of_study(
    study: Study,
    *,
    workers: int | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
    on_variant: Callable[[int, str], None] = lambda done, words: None,
) -> Robustness:
    """Enumerate a study, and again under every variation of its chip (`variations_of`).

    Parameters
    ----------
    study
        The study; its stored answers and cached evaluations are used, but not its trials.
    workers, on_progress
        See `phaze_opt.whole_space.enumerating.enumerate_study`.
    on_variant
        Called before every enumeration with the number of finished ones and the next variation.

    Raises
    ------
    ConflictError
        If the study was created with another version of the cost model.
    InputError
        If no bound is known for the objective, the space is too large, or nothing is feasible.
    StoppedError
        If a signal stopped it.
    """
    on_variant(0, "nominal")
    nominal = enumerate_study(study, workers=workers, on_progress=on_progress)
    if not nominal.top:
        raise InputError(f"No design of the study {study.name!r} is feasible, so none can win.")
    winner = nominal.top[0]
    answers = []
    for done, variation in enumerate(variations_of(study.resolved.base), start=1):
        on_variant(done, f"{variation.factor} × {variation.scale:g}")
        other = study_under(study, variation)
        best = enumerate_study(other, top=1, workers=workers, on_progress=on_progress).top
        answers.append(_answer(study, other, variation, winner, best[0] if best else None))
    return Robustness(winner, tuple(answers), nominal.version)


def study_under(study: Study, variation: Variation) -> Study:
    """Return a study in the same database whose cost model has another constant."""
    resolved = varied(study.resolved, variation)
    evaluator = study.evaluator
    if variation.factor == "lane_cycles":
        evaluator = evaluator_of(resolved)
    return replace(study, resolved=resolved, evaluator=evaluator)


def _answer(
    study: Study,
    other: Study,
    variation: Variation,
    winner: RankedDesign,
    best: RankedDesign | None,
) -> VariedAnswer:
    """Compare the winner of a study with the best design under a variation."""
    stays = best is not None and best.point == winner.point
    if best is not None and stays:
        metrics = best.metrics
    else:
        (metrics,) = Engine(other, other.evaluator).evaluate([DesignPoint(winner.point)])
    applied = variation.scale
    if variation.factor == "hbm_efficiency":
        efficiency = study.resolved.base.calibration.hbm_efficiency
        applied = other.resolved.base.calibration.hbm_efficiency / efficiency
    return VariedAnswer(variation, applied, best, metrics, stays)


def robustness_to_json_dict(study: Study, robustness: Robustness) -> dict[str, Any]:
    """Return the answer as ``study robust --json`` prints it."""
    resolved, winner = study.resolved, robustness.winner
    return {
        "study": study.name,
        "winner": ranked_to_json_dict(resolved, winner),
        "stays": robustness.stays,
        "of": len(robustness.variants),
        "variants": [
            {
                "factor": variant.variation.factor,
                "scale": variant.variation.scale,
                "applied": variant.applied,
                "stays": variant.winner_stays,
                "best": variant.best and ranked_to_json_dict(resolved, variant.best),
                "changes": {name: list(two) for name, two in variant.changes(winner).items()},
                "winner_values": list(variant.winner.values) if variant.winner.feasible else None,
                "winner_reason": variant.winner.reason,
                "loss": variant.loss,
            }
            for variant in robustness.variants
        ],
        "cost_model_version": robustness.version,
        # Its key in 0.1.
        "version": robustness.version,
    }

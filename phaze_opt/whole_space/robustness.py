"""How far the best design depends on constants of the cost model that are not known well.

The space is enumerated again with each of them smaller and larger, one at a time.
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
    applied
        What the constant was multiplied by: an efficiency cannot exceed 1.
    best
        ``None`` where nothing is feasible.
    winner
        Metrics of the study's winner under the variation.
    """

    variation: Variation
    applied: float
    best: RankedDesign | None
    winner: Metrics
    winner_stays: bool

    @property
    def loss(self) -> float | None:
        """By how much the winner is below the best, relative; ``None`` if it is not feasible.

        It may be negative by less than a bin of values, because a smaller design comes first there.
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
        return sum(one.winner_stays for one in self.variants)


def robustness_of_study(
    study: Study,
    *,
    workers: int | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
    on_variant: Callable[[int, str], None] = lambda done, words: None,
) -> Robustness:
    """Enumerate a study, and again under every one of `variations_of` its chip.

    Parameters
    ----------
    study
        Its trials play no part; what was enumerated before is taken from there.
    workers, on_progress
        See `phaze_opt.whole_space.enumerating.enumerate_study`.
    on_variant
        Called before every enumeration with the number of those that are done, and what it varies.

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
    found = []
    for done, variation in enumerate(variations_of(study.resolved.base), start=1):
        on_variant(done, f"{variation.factor} × {variation.scale:g}")
        other = study_under(study, variation)
        best = enumerate_study(other, top=1, workers=workers, on_progress=on_progress).top
        found.append(_answer(study, other, variation, winner, best[0] if best else None))
    return Robustness(winner, tuple(found), nominal.version)


def study_under(study: Study, variation: Variation) -> Study:
    """Return a study whose cost model has another constant; it shares the database."""
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
    """Look at the winner of a study under a variation."""
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


def robustness_to_json_dict(study: Study, found: Robustness) -> dict[str, Any]:
    """Return the answer as ``study robust --json`` prints it."""
    return {
        "study": study.name,
        "winner": ranked_to_json_dict(study.resolved, found.winner),
        "stays": found.stays,
        "of": len(found.variants),
        "variants": [
            {
                "factor": one.variation.factor,
                "scale": one.variation.scale,
                "applied": one.applied,
                "stays": one.winner_stays,
                "best": None if one.best is None else ranked_to_json_dict(study.resolved, one.best),
                "changes": {name: list(two) for name, two in one.changes(found.winner).items()},
                "winner_values": list(one.winner.values) if one.winner.feasible else None,
                "winner_reason": one.winner.reason,
                "loss": one.loss,
            }
            for one in found.variants
        ],
        "cost_model_version": found.version,
        # The same under its name in 0.1.
        "version": found.version,
    }

"""Compares studies of one question: how good each search is, and how soon.

The measure is the certified optimum of a stored enumeration; without an enumeration, the best
design that the studies know. All numbers follow from the trials in the order of their numbers, so
that they can be computed again from exported trials.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phaze_opt.codec import from_json, to_builtins
from phaze_opt.errors import InputError
from phaze_opt.spec.ordering import VALUE_BIN, Rank
from phaze_opt.spec.sampler_options import SamplerName
from phaze_opt.spec.space import DesignPoint
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.store.enumerations import find_answers
from phaze_opt.study.study import Study
from phaze_opt.study.trials import TrialRecord, best_trial
from phaze_opt.whole_space.exhaustive import Enumeration
from phaze_opt.whole_space.hypervolumes import hypervolumes
from phaze_opt.whole_space.random_search import RandomSearch, random_search

SHARES = (0.10, 0.05, 0.01, 0.0)
"""Distances from the optimum, relative to it; the last is the optimum itself."""


@dataclass(frozen=True)
class Optimum:
    """The design by which studies are measured.

    Attributes
    ----------
    status
        ``certified`` by an enumeration, or the ``best known`` of the studies.
    value
        Value of the first objective.
    place_of
        Place of each design of the enumeration's top, from 1 for the best.
    points_within
        Number of points of the space within each of `SHARES`; ``None`` if it is unknown.
    """

    status: Literal["certified", "best known"]
    value: float
    rank: Rank
    place_of: Mapping[DesignPoint, int]
    points_within: tuple[int | None, ...]


@dataclass(frozen=True)
class Reached:
    """The trials after which a search came within a distance of the optimum.

    Attributes
    ----------
    within
        The distance, relative to the optimum; 0 for the optimum itself.
    trials
        Number of complete trials, baselines included; ``None`` if the search never came so near.
    seconds
        Sum of the seconds that workers spent on these trials.
    """

    within: float
    trials: int | None
    seconds: float | None


@dataclass(frozen=True)
class SearchScore:
    """One study of a comparison.

    Attributes
    ----------
    complete, duplicates, failed
        Numbers of trials; a duplicate has the point of an earlier complete trial.
    infeasible
        Number of complete trials that each limit excluded.
    value
        Value of the best design by the order of designs; ``None`` if no design is feasible.
    regret
        Relative difference by which the value is worse than the optimum's. It can be a little below
        0, because the order of designs does not distinguish values of one bin.
    rank
        Rank of the study by its best design, from 1; equal designs share a rank.
    place
        Place of the best design in the top of the enumeration; ``None`` if it is not in the top.
    reached
        Trials until each of `SHARES`.
    hypervolume
        Hypervolume relative to that of all studies' joined front; ``None`` for one objective.
    best_values
        Best value of the first objective after each complete trial; ``None`` before the first
        feasible trial.
    """

    name: str
    sampler: SamplerName
    seed: int
    complete: int
    duplicates: int
    infeasible: Mapping[str, int]
    failed: int
    value: float | None
    regret: float | None
    rank: int | None
    place: int | None
    reached: tuple[Reached, ...]
    hypervolume: float | None
    best_values: tuple[float | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Scores of studies of one question, and the expected trials of random search.

    Attributes
    ----------
    points
        Number of points of the space, with those above the area limit.
    optimum
        ``None`` if no feasible design is known.
    random
        Random search by each of `SHARES`; empty for several objectives.
    """

    spec: StudySpec
    points: int
    optimum: Optimum | None
    studies: tuple[SearchScore, ...]
    random: tuple[RandomSearch, ...]


def compare(studies: Sequence[Study]) -> Comparison:
    """Compare studies of one question with its optimum and with each other.

    Raises
    ------
    InputError
        If there is no study, if a study is named twice, or if the studies ask different questions.
    """
    if not studies:
        raise InputError("No study is named, but a comparison needs at least one.")
    _check_question(studies)
    first = studies[0]
    spec = first.resolved.spec
    trials = [study.trials() for study in studies]
    bests = [best_trial(own_trials) for own_trials in trials]
    several = len(spec.objectives) > 1
    optimum = None if several else _certified(first) or _best_known(bests)
    volumes = hypervolumes(spec, trials) if several else [None] * len(studies)
    keys = sorted(best.rank.key for best in bests if best is not None and best.rank is not None)
    scores = [
        _score(study, own_trials, best, optimum, keys, volume)
        for study, own_trials, best, volume in zip(studies, trials, bests, volumes, strict=True)
    ]
    known = (None,) * len(SHARES) if optimum is None else optimum.points_within
    points = spec.space.points
    random = [
        random_search(within, points, good) for within, good in zip(SHARES, known, strict=True)
    ]
    return Comparison(spec, points, optimum, tuple(scores), () if several else tuple(random))


def points_within(enumeration: Enumeration, within: float, maximise: bool) -> int | None:
    """Return the number of points within a distance of the best; ``None`` if it is unknown.

    It is known if the top reaches beyond that distance, or holds every feasible point.
    """
    top = enumeration.top
    best = top[0].metrics.value
    if within == 0.0:
        return 1
    good = sum(_is_within(design.metrics.value, best, within, maximise) for design in top)
    whole = enumeration.evaluated + enumeration.infeasible_proven >= enumeration.points
    every = whole and enumeration.feasible == len(top)
    # Designs of one bin of values are sorted by other properties: the last bin may be cut.
    last = top[-1].metrics.value
    step = VALUE_BIN if maximise else -VALUE_BIN
    beyond = not _is_within(last * (1.0 + step), best, within, maximise)
    return good if every or beyond else None


def comparison_to_json_dict(compared: Comparison) -> dict[str, Any]:
    """Return a comparison as ``study compare --json`` prints it."""
    optimum = compared.optimum
    plain = None
    if optimum is not None:
        within = zip(SHARES, optimum.points_within, strict=True)
        plain = {
            "status": optimum.status,
            "value": optimum.value,
            "points_within": [{"within": share, "points": number} for share, number in within],
        }
    return {
        "objectives": list(compared.spec.metric_names),
        "points": compared.points,
        "optimum": plain,
        "studies": [to_builtins(score) for score in compared.studies],
        "random": [to_builtins(search) for search in compared.random],
    }


def _check_question(studies: Sequence[Study]) -> None:
    """Refuse studies that cannot be compared."""
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise InputError(f"The studies are {', '.join(names)}, but each must be named once.")
    first = studies[0]
    for study in studies[1:]:
        if study.resolved.question_hash != first.resolved.question_hash:
            raise InputError(
                f"The studies {first.name} and {study.name} ask different questions; 'phaze-opt "
                f"study diff {first.name} {study.name}' shows in what. Only the search may differ."
            )


def _certified(study: Study) -> Optimum | None:
    """Return the optimum of the stored enumeration with the longest top; ``None`` without one."""
    what = f"stored enumeration of the study {study.name!r}"
    enumerations = [
        from_json(body, Enumeration, what)
        for body in find_answers(study.storage, study.resolved.question_hash).values()
    ]
    longest = max(enumerations, key=lambda enumeration: len(enumeration.top), default=None)
    if longest is None or not longest.top:
        return None
    best = longest.top[0]
    rank = best.metrics.rank(study.resolved, DesignPoint(best.point))
    places = {DesignPoint(design.point): place for place, design in enumerate(longest.top, start=1)}
    within = tuple(points_within(longest, share, rank.maximise) for share in SHARES)
    return Optimum("certified", best.metrics.value, rank, places, within)


def _best_known(bests: Sequence[TrialRecord | None]) -> Optimum | None:
    """Return the best design of all studies."""
    ranks = [best.rank for best in bests if best is not None and best.rank is not None]
    if not ranks:
        return None
    rank = min(ranks, key=lambda rank: rank.key)
    return Optimum("best known", rank.value, rank, {}, (None,) * len(SHARES))


def _score(
    study: Study,
    trials: Sequence[TrialRecord],
    best: TrialRecord | None,
    optimum: Optimum | None,
    keys: Sequence[object],
    hypervolume: float | None,
) -> SearchScore:
    """Measure one study."""
    complete = [trial for trial in trials if trial.kind in ("feasible", "infeasible")]
    limits = [
        trial.metrics.limit or "unknown"
        for trial in complete
        if trial.kind == "infeasible" and trial.metrics is not None
    ]
    points = [trial.point for trial in complete if trial.point is not None]
    rank = None if best is None else best.rank
    place = regret = None
    reached: tuple[Reached, ...] = ()
    if optimum is not None:
        reached = tuple(_reached(complete, optimum, within) for within in SHARES)
        if rank is not None and best is not None and best.point is not None:
            regret = _regret(rank.value, optimum.value, rank.maximise)
            place = optimum.place_of.get(best.point)
    return SearchScore(
        name=study.name,
        sampler=study.resolved.spec.sampler,
        seed=study.resolved.spec.search.seed,
        complete=len(complete),
        duplicates=len(points) - len(set(points)),
        infeasible=Counter(limits),
        failed=sum(trial.kind == "failed" for trial in trials),
        value=None if rank is None else rank.value,
        regret=regret,
        rank=None if rank is None else keys.index(rank.key) + 1,
        place=place,
        reached=reached,
        hypervolume=hypervolume,
        best_values=_best_values(complete, study.resolved.spec.objective_kinds[0].maximise),
    )


def _reached(complete: Sequence[TrialRecord], optimum: Optimum, within: float) -> Reached:
    """Count the trials and seconds until a distance of the optimum."""
    seconds = 0.0
    for number, trial in enumerate(complete, start=1):
        if trial.started_s is not None and trial.ended_s is not None:
            seconds += trial.ended_s - trial.started_s
        if trial.rank is not None and _is_near(trial.rank, optimum, within):
            return Reached(within, number, seconds)
    return Reached(within, None, None)


def _is_near(rank: Rank, optimum: Optimum, within: float) -> bool:
    """Whether a design is within a distance of the optimum."""
    if within == 0.0:
        return rank.key <= optimum.rank.key
    return _is_within(rank.value, optimum.value, within, rank.maximise)


def _is_within(value: float, best: float, within: float, maximise: bool) -> bool:
    """Whether a value is within a distance of the best."""
    return value >= best * (1.0 - within) if maximise else value <= best * (1.0 + within)


def _regret(value: float, best: float, maximise: bool) -> float:
    """Return the relative difference by which a value is worse than the best."""
    return 1.0 - value / best if maximise else value / best - 1.0


def _best_values(complete: Sequence[TrialRecord], maximise: bool) -> tuple[float | None, ...]:
    """Return the best value after each trial."""
    worst = -math.inf if maximise else math.inf
    values = (worst if trial.rank is None else trial.rank.value for trial in complete)
    best = itertools.accumulate(values, max if maximise else min)
    return tuple(value if math.isfinite(value) else None for value in best)

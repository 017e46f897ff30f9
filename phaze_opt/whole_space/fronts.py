"""The front of a stored study: with the caches of its database, stored, and as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from phaze_opt.bounds.study_bounds import bounded_rate
from phaze_opt.errors import InputError
from phaze_opt.spec.objectives import OBJECTIVES
from phaze_opt.store.enumerations import BoundStore
from phaze_opt.study.study import Study
from phaze_opt.whole_space.answers import Front, SpaceAnswer, find_answer, keep_answer
from phaze_opt.whole_space.engine import Engine
from phaze_opt.whole_space.enumerating import ranked_to_json_dict, search_space
from phaze_opt.whole_space.exhaustive import EnumerationProgress
from phaze_opt.whole_space.front_bounds import front_objectives
from phaze_opt.whole_space.front_search import FoundFront, find_front
from phaze_opt.whole_space.pools import Pool


def front_of_study(
    study: Study,
    *,
    energy: bool = False,
    bounds: bool = True,
    workers: int | None = None,
    on_progress: Callable[[EnumerationProgress], None] = lambda progress: None,
) -> Front:
    """Find the designs of a study's whole space that no other design dominates.

    Parameters
    ----------
    study
        The study; its stored answer and cached evaluations are used, but not its trials.
    energy
        Whether the energy per sample is an additional objective.
    bounds, on_progress
        See `phaze_opt.whole_space.front_search.find_front`.
    workers
        See `phaze_opt.whole_space.enumerating.enumerate_study`.

    Raises
    ------
    ConflictError
        If the study was created with another version of the cost model.
    InputError
        If no bound is known for an objective, or the space is too large.
    StoppedError
        If a signal stopped it.
    """
    study.check_version()
    names = front_objectives(study.resolved.spec, energy=energy)
    what = f"stored front of the study {study.name!r}"
    stored = find_answer(study.storage, study.resolved, names, bounds, what)
    if isinstance(stored, Front):
        return stored
    started_s = time.monotonic()

    def search(engine: Engine, pool: Pool | None, stopped: Callable[[], bool]) -> FoundFront | None:
        return find_front(
            engine,
            BoundStore(study.storage),
            names,
            bounds=bounds,
            on_progress=on_progress,
            stopped=stopped,
            pool=pool,
        )

    result = search_space(study, search, workers, bounded=bounded_rate(study.resolved.spec).name)
    front = Front(names, result, time.monotonic() - started_s, study.resolved.cost_model_version)
    keep_answer(study.storage, study.resolved, SpaceAnswer(names, bounds, front))
    return front


def stored_front(study: Study) -> Front | None:
    """Return the front of a study's whole space, where one is stored; a damaged one counts as none.

    Of several that over the fewest objectives: without the energy per sample.
    """
    for energy in (False, True):
        names = front_objectives(study.resolved.spec, energy=energy)
        for bounds in (True, False):
            with suppress(InputError):
                what = f"stored front of the study {study.name!r}"
                stored = find_answer(study.storage, study.resolved, names, bounds, what)
                if (
                    isinstance(stored, Front)
                    and stored.version == study.resolved.cost_model_version
                ):
                    return stored
    return None


def front_to_json_dict(study: Study, front: Front) -> dict[str, Any]:
    """Return the answer as ``study pareto --json`` prints it."""
    return {
        "study": study.name,
        "objectives": [OBJECTIVES[name].metric for name in front.objectives],
        "points": front.found.points,
        "evaluated": front.found.evaluated,
        "feasible": front.found.feasible,
        "front": [
            ranked_to_json_dict(study.resolved, member.design) | {"values": list(member.values)}
            for member in front.found.designs
        ],
        "wall_s": front.wall_s,
        "cost_model_version": front.version,
        # Its key in 0.1.
        "version": front.version,
    }

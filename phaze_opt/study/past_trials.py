"""The finished trials that a run begins with, as points and costs, read from their facts by SQL.

A search that replays trials (`phaze_opt.study.samplers.replay`) needs nothing else of them: a run
of a study with very many trials begins without reading each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.space import Space, params_of, point_at
from phaze_opt.store.damage import damages
from phaze_opt.store.trial_facts import FactsOfStudy
from phaze_opt.study.samplers.grid import Coordinates, Grid
from phaze_opt.study.samplers.replay import Replayed


@dataclass(frozen=True)
class PastTrials:
    """The first trials of a study, up to the first one without facts.

    Attributes
    ----------
    replayed
        By number: point and cost; ``None`` of a trial that failed or has no point on the grid.
    last_row
        The rows of these trials are those up to this one; -1 without trials.
    """

    replayed: Sequence[Replayed | None] = ()
    last_row: int = -1


def read_past(
    resolved: ResolvedStudy, facts: FactsOfStudy, study_id: int, grid: Grid
) -> PastTrials:
    """Read the first trials of a study as `phaze_opt.study.trials.trial_cost` orders them.

    Parameters
    ----------
    facts, study_id
        Facts of all its trials, and Optuna's number of the study.
    grid
        All axes of its space.

    Raises
    ------
    DamagedError
        If a row of the facts does not have the form that this program writes.
    """
    first, last_row = facts.first_trials(study_id)
    told = facts.told_infeasible(study_id)
    sign = -1 if resolved.spec.objective_kinds[0].maximise else 1
    place = _places(resolved.spec.space, grid)
    replayed: list[Replayed | None] = []
    with damages(f"What is stored of the trials of the study {facts.name!r}"):
        for number, kind, design, *head in first:
            configuration = () if design is None else tuple(json.loads(design))
            point = place(configuration)
            if kind == "failed" or point is None:
                replayed.append(None)
            elif head[0] is not None:
                replayed.append((point, (0, *head, configuration)))
            else:
                replayed.append((point, (1, sign * told.get(number, -sign * math.inf))))
    return PastTrials(tuple(replayed), last_row)


def _places(space: Space, grid: Grid) -> Callable[[Sequence[Any]], Coordinates | None]:
    """Return a function from the values of a point, in the order of the space, to its indices."""
    lowest = point_at(space, dict.fromkeys(space.searched, 0))
    names = [name for name, _ in lowest.values]
    axes: list[tuple[int, dict[Any, int]]] = []
    for parameter in grid.axes:
        (name,) = (name for name in space.searched if space.parameters[name][0] == parameter)
        axis, params = space.searched[name], params_of(space, lowest)
        indices: dict[Any, int] = {}
        for index, value in enumerate(axis.values):
            point = grid.coordinates({**params, parameter: axis.to_parameter(index)})
            assert point is not None, "every value of the space lies on its grid"
            indices[value] = point[len(axes)]
        axes.append((names.index(name), indices))

    def place(configuration: Sequence[Any]) -> Coordinates | None:
        if len(configuration) != len(names):
            return None
        try:
            return tuple([indices[configuration[index]] for index, indices in axes])
        except KeyError:
            return None

    return place

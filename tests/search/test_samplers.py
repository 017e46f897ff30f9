"""Who proposes points."""

from __future__ import annotations

from typing import get_args

import optuna
import pytest
from optuna.trial import FrozenTrial

from phaze_opt.search.samplers import Cost, sampler_for
from phaze_opt.search.space import Space, distributions, point_of
from phaze_opt.search.spec import SamplerName
from phaze_opt.search.worker import suggest

SPACE = Space.phaze(
    num_tc=(1, 64),
    num_vc=(1, 1),
    pe_y=(2, 2),
    glb_mib=(2, 2),
    microbatch=(1, 1),
    hbm_gib=[32],
    recompute=["none"],
)


def negative_value(trial: FrozenTrial) -> Cost:
    """Order finished trials by their value."""
    assert trial.values is not None
    return (-trial.values[0],)


def climbed(name: SamplerName, trials: int, pause_at: int | None = None) -> list[dict[str, object]]:
    """Run a study in memory, with a new study object from ``pause_at`` on."""
    study = optuna.create_study(direction="maximize")
    for k in range(trials):
        if k == pause_at:
            study = optuna.load_study(study_name=study.study_name, storage=study._storage)
        study.sampler = sampler_for(name, 3, k, negative_value)
        trial = study.ask()
        point = point_of(SPACE, suggest(trial, SPACE))
        study.tell(trial, -abs(int(point["num_tc"]) - 16) - abs(int(point["pe_x"]) - 64))
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize("name", get_args(SamplerName))
def test_same_seed_same_points(name: SamplerName) -> None:
    """A sampler proposes the same points again, also after a pause."""
    assert climbed(name, 24) == climbed(name, 24, pause_at=13)


def test_climb_finds_the_top_of_a_hill() -> None:
    """On a hill with a single top, climbing arrives, and tries no point twice while it climbs."""
    visited = [(each["log2_num_tc"], each["log2_pe_x"]) for each in climbed("climb", 30)]
    climb = visited[8 : visited.index((4, 6)) + 1]
    assert len(climb) == len(set(climb))


def test_fixed_parameters_are_taken() -> None:
    """A trial with given parameters has exactly these."""
    study = optuna.create_study()
    wanted = {name: getattr(axis, "low", None) for name, axis in distributions(SPACE).items()}
    wanted |= {"hbm_gib": 32, "recompute": "none"}
    study.sampler = sampler_for("tpe", 0, 0, negative_value, wanted)
    assert suggest(study.ask(), SPACE) == wanted

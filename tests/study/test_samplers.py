"""Who proposes points."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from phaze_opt.errors import InputError
from phaze_opt.spec.sampler_options import (
    EvolutionOptions,
    SamplerName,
    check_objectives,
    sampler_options,
)
from phaze_opt.spec.space import Space, distributions
from phaze_opt.study.samplers.by_name import Samplers
from phaze_opt.study.samplers.evolution import Evolution
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.worker import suggest
from tests.study.spaces import Played, negative_value, spaces

HILL = {"x": IntDistribution(0, 6), "y": IntDistribution(0, 6), "z": IntDistribution(0, 6)}
NAMES: tuple[SamplerName, ...] = get_args(SamplerName)
QUICK = tuple(name for name in NAMES if name not in ("gp", "bound"))

EARLY: Mapping[SamplerName, dict[str, Any]] = {
    "tpe": {"startup_trials": 4, "n_ei_candidates": 8},
    "climb": {"startup_trials": 3},
    "nsga2": {"population_size": 4},
    "nsga3": {"population_size": 4},
    "cmaes": {"startup_trials": 3, "population_size": 4},
    "gp": {"startup_trials": 4},
}
"""Options with which a sampler begins to learn after a few trials."""


def early(name: SamplerName, space: Any, **other: Any) -> Played:
    """Return a study whose sampler begins to learn early."""
    return Played(space, name, options=sampler_options(name, EARLY.get(name, {})), **other)


@pytest.mark.parametrize("name", QUICK)
@given(
    space=spaces(),
    restarts=st.sets(st.integers(0, 19)),
    lost=st.sets(st.integers(0, 19), max_size=3),
    baselines=st.integers(0, 2),
)
@settings(max_examples=8, deadline=None)
def test_same_seed_same_points(
    name: SamplerName, space: Any, restarts: set[int], lost: set[int], baselines: int
) -> None:
    """Proposals lie in the space; they do not change when processes end, or lose their trials."""
    grid = Played(space, name).grid
    first = [grid.params(tuple(0 for _ in grid.sizes))] * baselines
    through, stopped = (early(name, space, given=first) for _ in range(2))
    through.play(20)
    stopped.play(20, restarts.__contains__, lost.__contains__)
    assert stopped.points == through.points
    assert all(grid.coordinates(point) is not None for point in through.points)


def test_the_gaussian_process_repeats_itself() -> None:
    """As above; one space, as each proposal takes a tenth of a second."""
    import torch

    space = HILL | {"w": FloatDistribution(0.0, 1.0, step=0.25)}
    threads = torch.get_num_threads()
    through, stopped = early("gp", space), early("gp", space)
    through.play(8)
    stopped.play(8, {5, 7}.__contains__, {6}.__contains__)
    assert stopped.points == through.points
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("name", QUICK)
def test_another_seed_other_points(name: SamplerName) -> None:
    """The seed decides."""
    first, second = Played(HILL, name, seed=1), Played(HILL, name, seed=2)
    first.play(10)
    second.play(10)
    assert first.points != second.points


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tpe", {"startup_trials": 30}),
        ("tpe", {"n_ei_candidates": 1}),
        ("climb", {"startup_trials": 30}),
        ("nsga2", {"population_size": 5}),
        ("nsga3", {"population_size": 5}),
        ("cmaes", {"startup_trials": 30}),
        ("cmaes", {"population_size": 4}),
        ("cmaes", {"sigma": 0.5}),
        ("gp", {"startup_trials": 5}),
    ],
)
def test_every_option_matters(name: SamplerName, options: dict[str, Any]) -> None:
    """With another value of an option come other points."""
    usual = Played(HILL, name)
    other = Played(HILL, name, options=sampler_options(name, options))
    trials = 7 if name == "gp" else 24
    usual.play(trials)
    other.play(trials)
    assert usual.points != other.points


@pytest.mark.parametrize(
    ("name", "table", "sentence"),
    [
        ("tpe", {"n_ei_candidate": 3}, "search.options of the sampler tpe.*'n_ei_candidates'"),
        ("random", {"sigma": 0.3}, "search.options of the sampler random"),
        ("tpe", {"startup_trials": -1}, "startup_trials is -1, .* at least 0"),
        ("tpe", {"n_ei_candidates": 0}, "n_ei_candidates is 0, .* at least 1"),
        ("climb", {"startup_trials": 0}, "startup_trials is 0, .* at least 1"),
        ("gp", {"startup_trials": 0}, "startup_trials is 0, .* at least 1"),
        ("nsga2", {"population_size": 1}, "population_size is 1, .* at least 2"),
        ("cmaes", {"population_size": 3}, "population_size is 3, .* at least 4"),
        ("cmaes", {"startup_trials": 0}, "startup_trials is 0, .* at least 1"),
        ("cmaes", {"sigma": 0.0}, r"sigma is 0.0, .* in \(0, 1\]"),
        ("cmaes", {"sigma": "wide"}, "Expected `float`"),
        ("tpr", {}, "Unknown sampler 'tpr'. Did you mean 'tpe'"),
    ],
)
def test_options_that_are_refused(name: Any, table: dict[str, Any], sentence: str) -> None:
    """A mistyped option names the nearest; a value outside its range names what is allowed."""
    with pytest.raises(InputError, match=sentence):
        sampler_options(name, table)


@pytest.mark.parametrize("name", NAMES)
def test_several_objectives(name: SamplerName) -> None:
    """A sampler that takes one objective only is refused; the others run on two."""
    check_objectives(name, 1)
    if name in ("bound", "climb", "cmaes"):
        with pytest.raises(InputError, match=f"{name} .* has 2. Allowed for several: brute-force,"):
            check_objectives(name, 2)
        return
    check_objectives(name, 2)
    study = optuna.create_study(directions=["maximize", "minimize"])
    samplers = Samplers(name, 1, HILL, negative_value, sampler_options(name, EARLY.get(name, {})))
    for ticket in range(7 if name == "gp" else 14):
        study.sampler = samplers.for_ticket(ticket)
        trial = study.ask(dict(HILL))
        params = trial.params
        trial.set_constraint("violation", float(params["z"] - 4))
        study.tell(trial, [float(params["x"] + params["z"]), float(params["y"])])
    assert len(study.best_trials) > 0


@given(
    space=spaces(),
    name=st.sampled_from(["climb", "cmaes"]),
    events=st.lists(st.integers(0, 5), max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_a_process_that_remembers_proposes_as_a_fresh_one(
    space: Any, name: Any, events: list[int]
) -> None:
    """Trials of several workers end in any order, or fail: what is remembered changes nothing."""
    played, ticket = early(name, space), 0
    running: list[optuna.Trial] = []
    for event in events:
        if running and event > 2:
            trial = running.pop(event % len(running))
            if event == 3:
                played.study.tell(trial, state=TrialState.FAIL)
            else:
                played.tell(trial)
            continue
        fresh = early(name, space)
        fresh.study = played.study
        twin = fresh.ask(ticket)
        fresh.study.tell(twin, state=TrialState.FAIL)
        running.append(played.ask(ticket))
        assert running[-1].params == twin.params
        ticket += 1


@pytest.mark.parametrize("name", ["climb", "cmaes"])
def test_trials_are_read_once(name: SamplerName) -> None:
    """A proposal after many trials reads only the last one, so that it costs no more."""
    read: list[int] = []

    def cost(trial: optuna.trial.FrozenTrial) -> tuple[float]:
        read.append(trial.number)
        return negative_value(trial)

    played = Played(HILL, name, cost=cost)
    played.play(40)
    assert read == list(range(39))


@pytest.mark.parametrize(("name", "trials"), [("climb", 60), ("cmaes", 160)])
def test_the_top_of_a_hill_is_found(name: SamplerName, trials: int) -> None:
    """On a hill with a single top, samplers that follow the slope arrive."""
    played = Played(HILL, name)
    played.play(trials)
    assert played.study.best_value == 10.0


@pytest.mark.parametrize(("seed", "digest"), [(0, "bbcc0138ad6d4d20"), (1, "e5ff3e778c5599bd")])
def test_climb_goes_as_it_always_went(seed: int, digest: str) -> None:
    """120 proposals on a slope with infeasible points, recorded when each read all trials anew."""
    space = {
        "log2_num_tc": IntDistribution(0, 12),
        "log2_pe_x": IntDistribution(1, 8),
        "log2_glb_mib": IntDistribution(1, 7),
        "hbm_gib": CategoricalDistribution((32, 64, 80)),
        "recompute": CategoricalDistribution(("none", "full")),
    }

    def slope(params: Mapping[str, Any]) -> float:
        cores, rows, glb = (params[name] for name in list(space)[:3])
        if cores + rows >= 11:
            return -float(cores + rows - 10)
        away = abs(cores - 3) + abs(rows - cores) + abs(glb - 6)
        return float(20 - away - params["hbm_gib"] / 100 + (params["recompute"] == "none"))

    played = Played(space, "climb", seed=seed, value=slope)
    played.play(120)
    text = json.dumps(played.points, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_a_copied_optimizer_goes_on_to_the_last_bit() -> None:
    """What the tail of a replay is told to a copy gives what the original would give."""
    grid = Grid.of({name: IntDistribution(0, 9 + k) for k, name in enumerate("abcdef")})
    state = Evolution(grid, 1, EvolutionOptions(startup_trials=1))
    draws = np.random.default_rng(1)
    for number in range(200):
        point, cost = tuple(draws.integers(grid.sizes).tolist()), (float(number % 7),)
        other = state.copy()
        other.record(point, cost)
        state.record(point, cost)
        ours, copied = state._optimizer, other._optimizer
        assert ours is not None and copied is not None
        assert np.array_equal(ours._cma._C, copied._cma._C) and np.array_equal(ours._A, copied._A)
        assert np.array_equal(ours.mean, copied.mean) and ours._cma._sigma == copied._cma._sigma
        state.propose(number)


def test_climb_tries_no_point_twice_on_its_way() -> None:
    """While it climbs, every proposal is new."""
    played = Played(HILL, "climb")
    played.play(60)
    visited = [tuple(point.values()) for point in played.points]
    climb = visited[8 : visited.index((3, 3, 3)) + 1]
    assert len(climb) == len(set(climb))


@pytest.mark.parametrize("name", ["nsga2", "nsga3"])
def test_generations(name: SamplerName) -> None:
    """A sampler that is made anew for each trial still counts generations, baselines included."""
    played = early(name, HILL, given=[{"x": 3, "y": 3, "z": 3}])
    played.play(16, lambda ticket: True)
    (key,) = {
        key
        for trial in played.study.trials
        for key in trial.system_attrs
        if key.endswith(":generation")
    }
    generations = [trial.system_attrs[key] for trial in played.study.trials]
    assert generations == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert played.study.trials[0].params == {"x": 3, "y": 3, "z": 3}


def test_continuous_axes_are_refused() -> None:
    """A sampler that walks on a grid says which axis has none."""
    with pytest.raises(InputError, match="The axis x has no step"):
        Played({"x": FloatDistribution(0.0, 1.0)}, "climb")


def test_the_worker_asks_for_every_axis() -> None:
    """A trial with given parameters has exactly these, for the axes of a study's space."""
    space = Space.phaze()
    given = {name: getattr(axis, "low", None) for name, axis in distributions(space).items()}
    given |= {"hbm_gib": 80, "recompute": "full"}
    study = optuna.create_study()
    study.sampler = Samplers("tpe", 1, distributions(space), negative_value).for_ticket(0, given)
    assert suggest(study.ask(), space) == given

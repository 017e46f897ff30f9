"""Samplers that follow from the number of the ticket alone: brute force and the Sobol' sequence."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution

from phaze_opt.study.samplers.brute_force import BruteForce, permuted
from phaze_opt.study.samplers.grid import Grid
from phaze_opt.study.samplers.quasi_random import QuasiRandom
from tests.study.spaces import spaces

SMALL = spaces(largest=3, most=4)


def frozen(params: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Make parameters comparable as members of a set."""
    return tuple(sorted(params.items()))


@given(space=spaces(), data=st.data())
@settings(deadline=None)
def test_grid_and_back(space: Any, data: Any) -> None:
    """Every rank is a point, and a point's parameters lead back to it."""
    grid = Grid.of(space)
    point = grid.point(data.draw(st.integers(0, grid.points - 1)))
    params = grid.params(point)
    assert grid.coordinates(params) == point
    for name, axis in space.items():
        assert axis._contains(axis.to_internal_repr(params[name]))


@given(space=spaces())
@settings(deadline=None)
def test_what_is_no_point_has_no_place(space: Any) -> None:
    """A value beyond an axis or between two steps, or a missing one, is not on the grid."""
    grid = Grid.of(space)
    params = grid.params(tuple(size - 1 for size in grid.sizes))
    name, axis = next(iter(space.items()))
    assert grid.coordinates({key: params[key] for key in params if key != name}) is None
    if isinstance(axis, CategoricalDistribution):
        assert grid.coordinates(params | {name: "another"}) is None
    else:
        assert grid.coordinates(params | {name: axis.high + axis.step}) is None
        assert grid.coordinates(params | {name: axis.low + 0.4 * axis.step}) is None


@given(number=st.integers(1, 700), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_permutation(number: int, seed: int) -> None:
    """Every place once."""
    assert sorted(permuted(index, number, seed) for index in range(number)) == [*range(number)]


@given(number=st.integers(10**6, 10**40), seed=st.integers(0, 9))
@settings(deadline=None)
def test_a_permutation_of_many(number: int, seed: int) -> None:
    """A space that nobody can list has an order too, and its first points are far apart."""
    places = [permuted(index, number, seed) for index in range(50)]
    assert len(set(places)) == 50 and min(places) >= 0 and max(places) < number
    assert max(places) - min(places) > number // 2


@given(
    space=SMALL,
    seed=st.integers(0, 2**32 - 1),
    baselines=st.integers(0, 3),
    workers=st.lists(st.integers(0, 2), min_size=1, max_size=20),
)
@settings(deadline=None)
def test_brute_force_takes_each_point_once(
    space: Any, seed: int, baselines: int, workers: list[int]
) -> None:
    """One worker or several, in any order; the tickets of baselines are made up for at the end."""
    grid = Grid.of(space)
    processes = [BruteForce(grid, seed) for _ in range(3)]
    tickets = range(baselines, grid.points + baselines)
    taken = [processes[workers[k % len(workers)]].propose(k) for k in tickets]
    assert len({frozen(params) for params in taken}) == grid.points


def test_brute_force_says_when_it_is_through(caplog: pytest.LogCaptureFixture) -> None:
    """One warning, when the order begins again."""
    brute_force = BruteForce(Grid.of({"x": IntDistribution(1, 5)}), 1)
    with caplog.at_level(logging.WARNING):
        first = [brute_force.propose(ticket) for ticket in range(5)]
        assert not caplog.records
        again = [brute_force.propose(ticket) for ticket in range(5, 10)]
    assert again == first
    (record,) = caplog.records
    assert "brute-force has passed all 5 points" in record.getMessage()


@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(32)))
@settings(max_examples=20, deadline=None)
def test_the_sequence_fills_every_axis_evenly(seed: int, order: list[int]) -> None:
    """Of 32 tickets in any order, of any process, each value of each axis gets its share."""
    grid = Grid.of({name: IntDistribution(0, 2**k - 1) for k, name in enumerate("abcdef")})
    ahead, behind = QuasiRandom(grid, seed), QuasiRandom(grid, seed)
    taken = {k: (ahead if k % 3 else behind).propose(k) for k in order}
    for k, name in enumerate("abcdef"):
        assert set(Counter(params[name] for params in taken.values()).values()) == {32 >> k}
    assert taken == {k: QuasiRandom(grid, seed).propose(k) for k in order}

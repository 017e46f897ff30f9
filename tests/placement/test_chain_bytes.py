"""What chains hold and send: found once for designs that differ in seconds only."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import fields, replace
from operator import attrgetter
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import PASS_COLUMNS, LayerCost
from phaze_opt.placement import candidate_costs
from phaze_opt.placement import chain_bytes as chain_bytes_module
from phaze_opt.placement.chain_bytes import (
    chain_bytes,
    distinct_limits,
    held_by_runs,
    in_flight_limits,
    maxima,
    parameters_of_runs,
    states_of_runs,
    sums,
)
from phaze_opt.placement.memory import Shards
from phaze_opt.placement.placement_problem import Placement, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from tests.placement.strategies import problems, scaled
from tests.placement.test_solve_placement import chain


def with_kinds(problem: PlacementProblem) -> PlacementProblem:
    """Say which layers are alike at every tensor degree."""
    bare = zip(
        *([each.with_fields(name="") for each in layers] for layers in problem.layers.values()),
        strict=True,
    )
    seen: dict[tuple[LayerCost, ...], int] = {}
    return replace(problem, kinds=tuple([seen.setdefault(kind, len(seen)) for kind in bare]))


def placed(problem: PlacementProblem) -> Placement | str:
    """Place a problem, or say why it does not fit."""
    try:
        return solve_placement(problem)
    except InfeasibleError as error:
        return str(error)


@settings(max_examples=30, deadline=None)
@given(problems())
def test_kinds_change_nothing(problem: PlacementProblem) -> None:
    """Reading equal layers once gives the same columns, bytes and placement, to the bit."""
    known = with_kinds(problem)
    for tensor, layers in problem.layers.items():
        for name in PASS_COLUMNS:
            stated = [attrgetter(name)(layer.passes) for layer in layers]
            assert known.column(tensor, name).tolist() == stated
            assert problem.column(tensor, name).tolist() == stated
        by_kinds, other = chain_bytes(known, tensor), chain_bytes(problem, tensor)
        assert [getattr(by_kinds, each.name) for each in fields(by_kinds)] == [
            getattr(other, each.name) for each in fields(other)
        ]
    assert repr(placed(known)) == repr(placed(problem))
    assert placed(known) == placed(problem)


@given(st.floats(0.1, 10.0))
def test_designs_with_other_seconds_have_the_same_bytes(rate: float) -> None:
    """The very same object, by which tables are found again; other bytes have another one."""
    problem = chain()
    faster = {
        tensor_degree: tuple(
            layer.with_fields(passes=scaled(layer.passes, 1.0 / rate)) for layer in layers
        )
        for tensor_degree, layers in problem.layers.items()
    }
    assert chain_bytes(replace(problem, layers=faster), 1) is chain_bytes(problem, 1)
    fuller = {1: tuple(layer.with_fields(stash_bytes=3) for layer in problem.layers[1])}
    other = chain_bytes(replace(problem, layers=fuller), 1)
    assert other is not chain_bytes(problem, 1)
    assert other.parameters is chain_bytes(problem, 1).parameters
    assert set(other.stash_bytes) == {3}


def test_columns_are_read_only_as_far_as_layers_differ() -> None:
    """A column of equal layers has one value, in the place of each."""
    problem = replace(chain(), kinds=(0,) * len(chain().layers[1]))
    column = problem.column(1, "forward.seconds")
    assert np.array_equal(column, np.full(len(column), problem.layers[1][0].passes.forward.seconds))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_tables_of_long_chains_are_made_again(problem: PlacementProblem) -> None:
    """The answer is the same, to the bit, where tables are forgotten as those of long chains."""
    with (
        patch.object(chain_bytes_module, "MOST_LAYERS", 0),
        patch.object(candidate_costs, "MOST_LAYERS", 0),
    ):
        placement = placed(problem)
    assert repr(placement) == repr(placed(problem))
    assert placement == placed(problem)


def test_tables_of_long_chains_go_with_them() -> None:
    """Nothing keeps what was found of a long chain once nobody holds the chain."""
    with patch.object(chain_bytes_module, "MOST_LAYERS", 0):
        held = chain_bytes(chain(), 1)
        own, _ = parameters_of_runs(held.parameters)
        assert parameters_of_runs(held.parameters)[0] is own
        kept = [weakref.ref(each) for each in (held, held.parameters, own)]
        del held, own
    assert [each() for each in kept] == [None, None, None]


@settings(max_examples=200)
@given(
    resident=st.integers(0, 10**13),
    stash=st.integers(0, 10**12),
    more=st.integers(-(10**12), 2**52),
)
def test_the_most_in_flight_is_exact(resident: int, stash: int, more: int) -> None:
    """As many as whole numbers say, whatever a quotient is rounded to."""
    ((limit,),) = in_flight_limits(
        np.array([[float(resident)]]), np.array([[float(stash)]]), resident + more
    )
    if more < 0:
        assert limit == -1
    elif stash:
        assert limit == more // stash
    else:
        assert limit > 10**9


@settings(max_examples=30, deadline=None)
@given(
    problems(),
    st.integers(0, 3),
    st.lists(st.integers(1, 64), min_size=1, max_size=6),
    st.integers(0, 20),
)
def test_many_ways_to_share_are_each_alone(
    problem: PlacementProblem, zero: int, data: list[int], most: int
) -> None:
    """What stages hold with some replicas is found at once for all, and equal limits once.

    A limit above the most is that, but where one stage holds all layers.
    """
    tensor = min(problem.layers)
    layers, optimizer = chain_bytes(problem, tensor), OPTIMIZERS["adam"]
    ways = [Shards.of(zero, replicas) for replicas in sorted(data)]
    states = states_of_runs(layers.parameters, optimizer, ways)
    usable_bytes = problem.hbm_usable_bytes
    working, stash = maxima(layers.transient_bytes), sums(layers.stash_bytes)
    limits, which = distinct_limits(states, working, stash, usable_bytes, most)
    for state, way, table in zip(states, ways, which.tolist(), strict=True):
        alone = held_by_runs(layers, optimizer, way, usable_bytes)
        np.testing.assert_array_equal(state + working, alone.resident_bytes)
        limit = np.minimum(alone.in_flight_limit, most)
        limit[0, -1] = alone.in_flight_limit[0, -1]
        np.testing.assert_array_equal(limits[table], limit)
    assert which.tolist() == sorted(which.tolist())
    assert all((one != other).any() for one, other in itertools.pairwise(limits))
    assert len(limits) == int(which[-1]) + 1

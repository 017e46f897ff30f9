"""Plans with groups of operators that run tile by tile."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling import tile_lattice
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.residency_search import search_frames
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.solve_schedule import solve_schedule
from phaze_opt.scheduling.tile_lattice import lattice_of_orders
from phaze_opt.scheduling.tile_search import search_tiles
from tests.scheduling.exhaustive_tiles import replayed_s, shortest_tiled_s
from tests.scheduling.residency_problems import as_problem
from tests.scheduling.tile_problems import random_tiled

NOTHING = math.inf, math.inf


@st.composite
def tiled_problems(draw: st.DrawFn) -> Residency:
    """Small problems of any shape."""
    return random_tiled(random.Random(draw(st.integers(0, 2**32))))


def solved(residency: Residency, *, prove: bool) -> Schedule:
    """Solve the problem whose operators on all cores are those of the joint problem."""
    return solve_schedule(as_problem(residency), method="auto" if prove else "branch-and-bound")


def test_two_thousand_problems_equal_exhaustive_search() -> None:
    """All orders, groups, numbers of tiles, tensors that are kept, and levels of each operator."""
    gained = 0
    for seed in range(2000):
        made = random_tiled(random.Random(seed), *((7, 4) if seed % 20 == 0 else (4, 3)))
        assert made.tiling is not None and made.tiling.graph.whole_lattice is not None
        found = search_tiles(made, made.tiling, made.tiling.graph.whole_lattice, NOTHING)
        shortest_s = shortest_tiled_s(made, made.tiling)
        assert (math.inf if found is None else found.makespan_s) == pytest.approx(shortest_s)
        whole = search_frames(made).best
        gained += whole is not None and shortest_s < whole.makespan_s * (1.0 - 1e-9)
    assert gained > 150


@settings(max_examples=100, deadline=None)
@given(made=tiled_problems(), prove=st.booleans())
def test_a_schedule_is_never_slower_and_keeps_the_rules(made: Residency, prove: bool) -> None:
    """Bound <= optimum <= what is found <= what is found without tiles; room, bytes and seconds."""
    assert made.tiling is not None
    without = solved(replace(made, tiling=None), prove=prove)
    schedule = solved(made, prove=prove)
    assert schedule.makespan_s <= without.makespan_s
    assert schedule.bound_s <= schedule.makespan_s
    optimum_s = min(shortest_tiled_s(made, made.tiling), without.bound_s)
    assert schedule.bound_s <= optimum_s * (1.0 + 1e-6)
    if prove and schedule.residency is not None:
        assert schedule.makespan_s <= optimum_s * (1.0 + 1e-6)
    if schedule.residency is not None:
        assert replayed_s(made, made.tiling, schedule) == pytest.approx(schedule.makespan_s)


def test_a_bound_counts_tiles_that_nobody_searched() -> None:
    """Whole operators that never fit leave no plan but tiles, of which none is searched here."""
    shorter = 0
    for seed in range(60):
        made = random_tiled(random.Random(seed), 4, 3)
        assert made.tiling is not None
        made = replace(made, working_bytes=made.working_bytes + made.glb_bytes + 1)
        with patch.object(tile_lattice, "MOST_MASKS", 1):
            schedule = solved(made, prove=False)
        assert schedule.residency is None and made.tiling is not None
        shortest_s = shortest_tiled_s(made, made.tiling)
        assert schedule.bound_s <= shortest_s * (1.0 + 1e-9)
        shorter += shortest_s < schedule.makespan_s
    assert shorter > 1


@settings(max_examples=100, deadline=None)
@given(made=tiled_problems(), more=st.integers(0, 20))
def test_more_buffer_is_never_slower(made: Residency, more: int) -> None:
    """What is possible with some buffer is possible with a larger one, in the fast method too."""
    larger = replace(made, glb_bytes=made.glb_bytes + more)
    assert made.tiling is not None
    lattice = made.tiling.graph.fast_lattice
    before = search_tiles(made, made.tiling, lattice, NOTHING)
    after = search_tiles(larger, made.tiling, lattice, NOTHING)
    if before is not None:
        assert after is not None
        assert after.makespan_s <= before.makespan_s * (1.0 + 1e-12)


@settings(max_examples=50, deadline=None)
@given(made=tiled_problems())
def test_the_fast_method_is_near_the_optimum(made: Residency) -> None:
    """It is never better, and mostly as good."""
    assert made.tiling is not None and made.tiling.graph.whole_lattice is not None
    fast = search_tiles(made, made.tiling, made.tiling.graph.fast_lattice, NOTHING)
    best = search_tiles(made, made.tiling, made.tiling.graph.whole_lattice, NOTHING)
    if fast is not None:
        assert best is not None
        assert best.makespan_s <= fast.makespan_s * (1.0 + 1e-12)
        assert float(made.tiling.least_s.sum()) <= best.makespan_s * (1.0 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(made=tiled_problems(), worse=st.sampled_from([1e-13, 1e-9, 0.01, 0.3]), whole=st.booleans())
def test_what_cannot_pay_is_left_out(made: Residency, worse: float, whole: bool) -> None:
    """With a plan known, the same plan is found to the bit as with none, and nothing beyond it."""
    assert made.tiling is not None
    lattice = made.tiling.graph.whole_lattice if whole else made.tiling.graph.fast_lattice
    assert lattice is not None
    every = search_tiles(made, made.tiling, lattice, NOTHING)
    if every is not None:
        known = every.makespan_s * (1.0 + worse), math.inf
        assert search_tiles(made, made.tiling, lattice, known) == every
        assert search_tiles(made, made.tiling, lattice, every.rank) is None


@pytest.mark.parametrize("most", [32, 64])
def test_sums_leave_no_other_group_out(most: int) -> None:
    """Where groups are too many, those with sums go first, so that no plan without them is lost."""
    fewer = 0
    for seed in range(100, 180):
        rng = random.Random(seed)
        made, sums = random_tiled(rng), frozenset(i for i in range(7) if rng.random() < 0.4)
        assert made.tiling is not None
        tiles = made.tiling.graph
        counts = tuple(() if i in sums else own for i, own in enumerate(tiles.counts))
        with patch.object(tile_lattice, "MOST_MASKS", most):
            every = lattice_of_orders(replace(tiles, sums=sums))
            without = lattice_of_orders(replace(tiles, counts=counts))
        assert set(without.arcs) <= set(every.arcs)
        fewer += len(every.arcs) < len(lattice_of_orders(tiles).arcs)
    assert fewer > 10


def test_only_what_is_better_is_found() -> None:
    """A plan as good as the one known is none."""
    made = random_tiled(random.Random(1))
    assert made.tiling is not None
    lattice = made.tiling.graph.fast_lattice
    found = search_tiles(made, made.tiling, lattice, NOTHING)
    assert found is not None
    assert search_tiles(made, made.tiling, lattice, found.rank) is None
    again = search_tiles(made, made.tiling, lattice, (np.nextafter(found.rank[0], 9e9), 0.0))
    assert again is not None and again.rank == found.rank

import random

import pytest

from phaze_opt.scheduling.cp_sat_residency import improve_jointly
from phaze_opt.scheduling.residency_search import search_frames
from tests.scheduling.exhaustive_residency import shortest_joint_s
from tests.scheduling.residency_problems import layer_residency, random_residency

EFFORT = 5_000_000


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_equal_to_exhaustive_search(first: int) -> None:
    """Every small problem is solved to its optimum, with proof."""
    for seed in range(first, first + 40):
        residency = random_residency(random.Random(seed))
        fast = search_frames(residency).best
        if fast is None:
            continue
        best, bound_s = improve_jointly(residency, fast, EFFORT)
        optimum_s = shortest_joint_s(residency)
        assert best.makespan_s == pytest.approx(optimum_s, rel=1e-9)
        assert optimum_s * (1 - 1e-6) <= bound_s <= optimum_s * (1 + 1e-9)


@pytest.mark.parametrize("mib", [16, 64])
def test_layers_are_proven(mib: int) -> None:
    """Graphs of 23 operators, three wide, are solved to proven optimality."""
    residency = layer_residency(1, 23, 3, mib * 2**20)
    fast = search_frames(residency).best
    assert fast is not None
    best, bound_s = improve_jointly(residency, fast, EFFORT)
    assert bound_s == pytest.approx(best.makespan_s, rel=1e-6)
    assert best.makespan_s <= fast.makespan_s


def test_little_effort_is_honest_and_repeatable() -> None:
    """With too little effort, the plan is no worse than the hint and the bound no proof."""
    residency = layer_residency(2, 60, 4, 32 * 2**20)
    fast = search_frames(residency).best
    assert fast is not None
    best, bound_s = improve_jointly(residency, fast, 100_000)
    assert bound_s < best.makespan_s <= fast.makespan_s
    assert improve_jointly(residency, fast, 100_000) == (best, bound_s)

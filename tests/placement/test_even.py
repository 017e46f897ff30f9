import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.passes.layer_cost import LayerCost, LayerPasses
from phaze_opt.placement.chain_bounds import Classes
from phaze_opt.placement.even import all_even_starts, even_starts, least_even_times
from phaze_opt.placement.placement_problem import repetition


def layers(blocks: int, *, with_ends: bool) -> list[LayerCost]:
    """Return equal blocks, between an embedding and a head if asked for."""
    block = LayerCost("block", LayerPasses.of(1.0, 2.0), 100, 0, 10, 5, 8)
    end = LayerCost("end", LayerPasses.of(0.1, 0.2), 50, 0, 1, 5, 8)
    return [end, *[block] * blocks, end] if with_ends else [block] * blocks


@pytest.mark.parametrize(
    ("blocks", "stages", "sizes"),
    [
        (24, 8, [4, 3, 3, 3, 3, 3, 3, 4]),  # embedding and head come on top of three blocks each
        (24, 1, [26]),
        (10, 4, [4, 3, 2, 3]),  # ten blocks as 3, 3, 2, 2
        (2, 4, [1, 1, 1, 1]),  # more stages than blocks: all layers are divided
    ],
)
def test_blocks_are_divided_by_count(blocks: int, stages: int, sizes: list[int]) -> None:
    """Repeated layers are divided; what is around them stays on the outer stages."""
    chain = layers(blocks, with_ends=True)
    starts = even_starts(chain, stages)
    assert np.diff([*starts, len(chain)]).tolist() == sizes


@given(st.integers(1, 40), st.data())
def test_equal_layers_differ_by_at_most_one(count: int, data: st.DataObject) -> None:
    """Without special ends the stages differ by one layer at most, and none is empty."""
    stages = data.draw(st.integers(1, count))
    sizes = np.diff([*even_starts(layers(count, with_ends=False), stages), count])
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("with_ends", [True, False])
def test_all_even_splits_are_those_of_each_number(with_ends: bool) -> None:
    """Splits for all numbers of stages at once are the splits for each."""
    chain = layers(9, with_ends=with_ends)
    every = all_even_starts(chain, repetition(tuple(range(len(chain)))))
    # Nobody need have said that the ends are alike.
    known = repetition((0, *[1] * 9, 2) if with_ends else (0,) * 9)
    assert all_even_starts(chain, known).tolist() == every.tolist()
    for stages in range(1, len(chain) + 1):
        assert every[stages, :stages].tolist() == even_starts(chain, stages).tolist()
        assert not every[stages, stages:].any()


@pytest.mark.parametrize("all_in_flight", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_bounds_equal_their_definition(seed: int, all_in_flight: bool) -> None:
    """To the bit, for any numbers, whatever was found out for another candidate."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 8))
    shape = count, count + 1
    load_s, parameters = random.choice([0.1, 0.7, 1.3, 2.9], (2, *shape))
    limit = random.choice(np.array([-1, 1, 2, 3, 9, 9, 9]), shape)
    starts = all_even_starts(layers(count, with_ends=False), repetition((0,) * count))
    tails_s = random.random((3, count))
    rows, pipeline, microbatches = (
        random.integers(low, high, 30) for low, high in ((0, 3), (1, count + 1), (1, 12))
    )
    classes = Classes(
        tails_s, rows, pipeline, microbatches, np.ones(30), np.zeros(30), all_in_flight
    )
    found_s = least_even_times(load_s, parameters, 0.01, limit, starts, classes)
    for k, (row, stages, rounds) in enumerate(
        zip(rows.tolist(), pipeline.tolist(), microbatches.tolist(), strict=True)
    ):
        firsts = starts[stages, :stages].tolist()
        runs = [*zip(firsts, [*firsts[1:], count], strict=True)]
        held = [rounds if all_in_flight else min(stages - place, rounds) for place in range(stages)]
        least_s = before_s = 0.0
        for run in runs:
            least_s = max(least_s, before_s + (rounds * load_s[run] - parameters[run] * 0.01))
            before_s += load_s[run]
        fits = all(limit[run] >= needed for run, needed in zip(runs, held, strict=True))
        assert found_s[k] == (least_s + tails_s[row, runs[0][1] - 1] if fits else np.inf)

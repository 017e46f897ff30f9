"""What stages of a chain can hold, against all splits of short ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.placement.deep_stages import (
    ChainSums,
    least_loaded,
    least_rest_s,
    most_work_s,
    tightest,
)
from phaze_opt.placement.memory import stage_memory
from phaze_opt.placement.pipeline import PipelineWork, finish_s, held_by_place
from tests.placement.strategies import backward_s, layer_costs

SGD = OPTIMIZERS["sgd"]
chains = st.integers(3, 9).flatmap(lambda count: layer_costs(count, (1,), forward_share=None))
schedules = st.sampled_from(["1f1b", "gpipe"])


def works_s(layers: tuple[LayerCost, ...]) -> list[float]:
    """Return forward and backward of each layer together."""
    return [layer.passes.forward.seconds + backward_s(layer) for layer in layers]


def sums_of(layers: tuple[LayerCost, ...]) -> ChainSums:
    """Add up the layers."""
    return ChainSums.of(layers, np.array(works_s(layers)), SGD)


def all_splits(layers: tuple[LayerCost, ...], stages: int) -> Iterator[list[int]]:
    """Yield the bounds of all splits into at most so many stages."""
    for number in range(1, min(stages, len(layers)) + 1):
        for cuts in itertools.combinations(range(1, len(layers)), number - 1):
            yield [0, *cuts, len(layers)]


def needs(layers: tuple[LayerCost, ...], cuts: list[int], held: np.ndarray) -> list[int]:
    """Return what the stages of a split hold."""
    in_flight = held[len(cuts) - 1 : 0 : -1].tolist()
    return [
        stage_memory(layers[i:j], count, SGD).total
        for (i, j), count in zip(itertools.pairwise(cuts), in_flight, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(chains, schedules, st.integers(1, 9), st.integers(1, 12), st.integers(50, 2000))
def test_splits_from_the_end_are_the_best_of_all(
    drawn: dict[int, tuple[LayerCost, ...]],
    schedule: PipelineScheduleName,
    stages: int,
    microbatches: int,
    usable_bytes: int,
) -> None:
    """Of those that fit, the one with the least loaded fullest stage; of all, the tightest."""
    (layers,), sums = drawn.values(), sums_of(*drawn.values())
    held, work_s = held_by_place(stages, microbatches, schedule), works_s(layers)
    splits = list(all_splits(layers, stages))
    fullest = [max(needs(layers, cuts, held)) for cuts in splits]
    need, starts = tightest(sums, held)
    assert need == min(fullest)
    assert max(needs(layers, [*starts.tolist(), len(layers)], held)) == need
    loads_s = [
        max(sum(work_s[i:j]) for i, j in itertools.pairwise(cuts))
        for cuts, most in zip(splits, fullest, strict=True)
        if most <= usable_bytes
    ]
    found = least_loaded(sums, float(usable_bytes), held)
    assert (found is None) == (not loads_s)
    if found is not None:
        cuts = [*found.tolist(), len(layers)]
        assert max(needs(layers, cuts, held)) <= usable_bytes
        load_s = max(sum(work_s[i:j]) for i, j in itertools.pairwise(cuts))
        assert load_s == pytest.approx(min(loads_s), rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(chains, schedules, st.integers(1, 9), st.integers(1, 12), st.integers(50, 2000))
def test_no_split_that_fits_takes_less_than_the_bound(
    drawn: dict[int, tuple[LayerCost, ...]],
    schedule: PipelineScheduleName,
    stages: int,
    microbatches: int,
    usable_bytes: int,
) -> None:
    """Replayed event by event; where the bound is endless, none fits."""
    (layers,), sums = drawn.values(), sums_of(*drawn.values())
    held, work_s = held_by_place(stages, microbatches, schedule), works_s(layers)
    shares = [layer.passes.forward.seconds / own for layer, own in zip(layers, work_s, strict=True)]
    share, all_s = max(min(shares), 1.0 - max(shares)), sum(work_s) * (1.0 - 1e-9)
    most_s = most_work_s(sums, float(usable_bytes), held)
    rest_s = least_rest_s(most_s, held, microbatches, share, all_s)
    times_s = []
    for cuts in all_splits(layers, stages):
        if max(needs(layers, cuts, held)) > usable_bytes:
            continue
        runs = [layers[i:j] for i, j in itertools.pairwise(cuts)]
        forward_s = [sum(layer.passes.forward.seconds for layer in run) for run in runs]
        work = PipelineWork.of(forward_s, [sum(map(backward_s, run)) for run in runs])
        times_s.append(finish_s(work, microbatches, schedule)[0])
    assert sum(work_s) + rest_s <= min(times_s, default=np.inf) * (1.0 + 1e-8)


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 4), (4, 16), (8, 6)])
def test_equal_layers_with_enough_memory_are_bound_by_the_closed_form(
    stages: int, microbatches: int
) -> None:
    """Exactly where there are more microbatches than stages, else nearly."""
    held = held_by_place(stages, microbatches)
    rest_s = least_rest_s(np.full(stages + 1, np.inf), held, microbatches, 0.6, 1.0)
    expected = (microbatches - 1) / stages
    assert rest_s <= expected * (1.0 + 1e-9)
    least = 1.0 if microbatches > stages else 0.6
    assert rest_s >= least * expected * (1.0 - 1e-9)

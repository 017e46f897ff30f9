"""Chains that are placed by merging their layers."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import RANK_ORDERS, Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.passes.layer_cost import LayerPasses
from phaze_opt.placement import deep
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.candidates import Candidate
from phaze_opt.placement.describe import describe
from phaze_opt.placement.layout import Layout
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import place_again, solve_placement
from tests.placement.test_best import large_problems, solved
from tests.placement.test_size import chain


@contextmanager
def no_tables(most_tried: int) -> Iterator[None]:
    """Take every chain to be too deep for tables, and try at most so many degrees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep, "MOST_TRIED", most_tried)
        patch.setattr(deep, "tables_fit", lambda *_: False)
        yield


chains = large_problems().map(
    lambda drawn: replace(drawn, training=replace(drawn.training, zero=0))
)


@settings(max_examples=60, deadline=None)
@given(chains, st.data())
def test_merged_layers_cost_what_their_stage_does(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    """Time, memory and communication of any split of any degrees, as the tables have them."""
    tensor = data.draw(st.sampled_from(sorted(problem.layers)))
    layers = list(problem.layers[tensor])
    if data.draw(st.booleans()):
        layers[0] = replace(layers[0], parameters=layers[0].parameters + 9, tied_parameters=9)
        layers[-1] = replace(layers[-1], parameters=layers[-1].parameters + 9, tied_parameters=9)
    problem = replace(
        problem,
        layers={tensor: tuple(layers)},
        hbm_usable_bytes=1e12,
        collective_core_share=data.draw(st.sampled_from([0.0, 0.1])),
        training=replace(
            problem.training, pipeline_schedule=data.draw(st.sampled_from(["1f1b", "gpipe"]))
        ),
    )
    cuts = data.draw(st.sets(st.integers(1, len(layers) - 1), max_size=5))
    starts = np.array([0, *sorted(cuts)])
    replicas = data.draw(st.integers(1, 100 // (len(starts) * tensor)))
    order = data.draw(st.sampled_from(RANK_ORDERS))
    candidate = Candidate.of(Degrees(len(starts), replicas, tensor), order)
    merged = deep.place_split(problem, candidate, starts)
    layout = Layout.of_starts(candidate, starts, len(layers))
    expected = describe(CandidateCosts(problem), layout)
    assert merged is not None
    assert merged.time_per_batch_s == pytest.approx(expected.time_per_batch_s, rel=1e-12)
    for own, stage in zip(merged.stages, expected.stages, strict=True):
        assert (own.layers, own.memory_bytes) == (stage.layers, stage.memory_bytes)
        for sent, other in zip(own.communication, stage.communication, strict=True):
            assert sent.total_s == pytest.approx(other.total_s, rel=1e-9)
            assert sent.exposed_s == pytest.approx(other.exposed_s, rel=1e-9, abs=1e-12)
            assert sent.sent_bytes == pytest.approx(other.sent_bytes, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(chains, st.sampled_from(["1f1b", "gpipe"]), st.sampled_from([1, 4, 100]))
def test_a_deep_chain_is_no_faster_than_the_best_and_its_bound_no_slower(
    problem: PlacementProblem, schedule: PipelineScheduleName, most_tried: int
) -> None:
    """What is not tried costs time, and is in the gap; what fits nowhere is said to."""
    training = replace(problem.training, pipeline_schedule=schedule)
    problem = replace(problem, training=training)
    best = solved(problem)
    with no_tables(most_tried):
        found = solved(problem)
    if isinstance(best, str) or isinstance(found, str):
        assert isinstance(best, str) and isinstance(found, str)
        return
    assert found.bound_s is not None
    assert found.bound_s <= best.time_per_batch_s * (1.0 + 1e-9)
    assert found.time_per_batch_s >= best.time_per_batch_s * (1.0 - 1e-9)


@pytest.mark.parametrize(("network", "kinds"), [("tpuv4-ici-flat", 1), ("dgx-a100", 10)])
def test_ten_thousand_layers(network: str, kinds: int) -> None:
    """In seconds, and in less memory than one table of their stages, almost proven."""
    problem = chain(10_000, network, 1024)
    layers = [
        replace(problem.layers[1][0], passes=LayerPasses.of(1e-3, 2e-3 + 1e-4 * kind))
        for kind in range(kinds)
    ]
    every = tuple(layers[index % kinds] for index in range(10_000))
    problem = replace(problem, layers=dict.fromkeys(problem.layers, every))
    started_s = time.process_time()
    tracemalloc.start()
    placement = solve_placement(problem)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * 2**20 and time.process_time() - started_s < 20.0
    assert sum(len(stage.layers) for stage in placement.stages) == 10_000
    assert placement.bound_s is not None and placement.gap is not None
    assert 0.0 <= placement.gap < 0.01
    again = place_again(problem, placement)
    assert again.time_per_batch_s == placement.time_per_batch_s


@pytest.mark.parametrize(
    ("network", "stash_bytes"), [("tpuv4-ici-flat", 10**6), ("dgx-a100", 4 * 10**6)]
)
def test_ten_thousand_layers_whose_stashes_fill_the_memory(network: str, stash_bytes: int) -> None:
    """First stages have few layers, last ones many, and the bound knows why."""
    problem = chain(10_000, network, 1024)
    layer = replace(problem.layers[1][0], stash_bytes=stash_bytes)
    problem = replace(problem, layers=dict.fromkeys(problem.layers, 10_000 * (layer,)))
    placement = solve_placement(problem)
    assert placement.gap is not None and 0.0 <= placement.gap < 0.1
    fewest, *_, most = sorted(len(stage.layers) for stage in placement.stages)
    full = max(stage.memory_bytes.total for stage in placement.stages)
    assert full <= problem.hbm_usable_bytes
    assert most > 2 * fewest and full > 0.99 * problem.hbm_usable_bytes


def test_a_deep_chain_that_fits_nowhere_is_infeasible() -> None:
    """With the memory that it would need."""
    problem = chain(10_000, "tpuv4-ici-flat", 1024)
    problem = replace(problem, hbm_usable_bytes=6e7)
    with pytest.raises(InfeasibleError, match="Even the split that needs least memory") as caught:
        solve_placement(problem)
    misfit = caught.value.misfit  # type: ignore[attr-defined]
    for more, fits in ((0, True), (-1, False)):
        again = replace(problem, hbm_usable_bytes=float(misfit.memory.total + more))
        assert isinstance(solved(again), str) != fits


@pytest.mark.parametrize("what", ["a skipping edge", "ZeRO"])
def test_other_deep_chains_are_refused_with_its_size(what: str) -> None:
    """Before memory is taken, as every chain without enough of it."""
    problem = chain(10_000, "tpuv4-ici-flat", 1024, zero=1 if what == "ZeRO" else 0)
    if what == "a skipping edge":
        problem = replace(problem, edges=(*problem.edges, (0, 9_999)))
    with pytest.raises(InputError, match=r"10,000 layers .* GB of memory for the tables"):
        solve_placement(problem)

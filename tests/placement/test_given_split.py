"""Splits that are stated: how layers are counted, what they cost, what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.steps import Step, applied, changed_options
from phaze_opt.named_point import named_point
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.placement.given_split import given_starts
from phaze_opt.placement.placement_problem import PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from tests.placement.strategies import problems

NAMES = ("embedding", *(f"block.{i}" for i in range(14)), "head")
LLAMA = "llama:layers=6,hidden=256,heads=4,kv_heads=4,ffn=704,sequence=512,vocab=128256"
TRAINING = Training(16, optimizer="adam")
CACHE: dict[str, Schedule] = {}


def run(stages: tuple[int, ...] | str | None, training: Training = TRAINING) -> Evaluation:
    """Evaluate a Llama with a large vocabulary on three stages."""
    place = (3, 1, 1)
    return evaluate(
        LLAMA, "h100", "dgx-h100", training, place, devices=4, cache=CACHE, stages=stages
    )


def test_blocks_are_counted_as_people_do() -> None:
    """What is before and after them is on the first and the last stage; or all are counted."""
    assert given_starts((3, 4, 4, 3), NAMES, 4).tolist() == [0, 4, 8, 12]
    assert given_starts((4, 4, 4, 4), NAMES, 4).tolist() == [0, 4, 8, 12]
    # The ends may be alone on their stages.
    assert given_starts((0, 7, 7, 0), NAMES, 4).tolist() == [0, 1, 8, 15]
    # Layers of several kinds, nothing before and after them.
    assert given_starts((2, 1), ("dense.0", "block.1", "block.2"), 2).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((3, 4, 4), "which are 3 stages, but the placement has 4"),
        ((3, 4, 4, 4), "adds up to 15, but the model has 14 repeated layers, and 16 with"),
        ((3, 0, 8, 3), "every stage must hold at least one layer"),
    ],
)
def test_what_does_not_add_up_is_refused(sizes: tuple[int, ...], words: str) -> None:
    """In one sentence."""
    with pytest.raises(InputError, match=words):
        given_starts(sizes, NAMES, 4)


@settings(max_examples=40, deadline=None)
@given(problems(), st.data())
def test_no_stated_split_is_faster_than_the_solved_one(
    problem: PlacementProblem, data: st.DataObject
) -> None:
    """Of any number of stages, and an even one is the default to the bit."""
    problem = replace(problem, training=replace(problem.training, pipeline_schedule="1f1b"))
    problem = replace(problem, training=replace(problem.training, interleave=1))
    count = len(next(iter(problem.layers.values())))
    tensor = data.draw(st.sampled_from(sorted(problem.layers)))
    pipeline = data.draw(st.integers(1, count))
    degrees = Degrees(pipeline, 1, tensor)
    cuts = data.draw(st.permutations(range(1, count))) if count > 1 else []
    starts = [0, *sorted(cuts[: pipeline - 1]), count]
    sizes = tuple(np.diff(starts).tolist())
    try:
        given_ = solve_placement(problem, degrees, sizes)
    except InfeasibleError:
        return
    assert [len(stage.layers) for stage in given_.stages] == list(sizes)
    assert solve_placement(problem).time_per_batch_s <= given_.time_per_batch_s * (1.0 + 1e-9)


def test_even_stages_that_are_stated_are_the_default_to_the_bit() -> None:
    """As numbers, as text, and counted with what stands before and after them."""
    even = run(None)
    assert even == run((2, 2, 2)) == run("2, 2, 2") == run("3,2,3") == run("")


def test_a_lighter_last_stage_is_faster_where_the_head_is_heavy() -> None:
    """No split of these stages is faster than the best that is stated, nor slower than solved."""
    times = {
        sizes: run(sizes).time_per_batch_s or float("inf")
        for sizes in product(range(1, 5), repeat=3)
        if sum(sizes) == 6
    }
    best = min(times, key=lambda sizes: times[sizes])
    assert best[-1] < 2 and times[best] < times[2, 2, 2]
    solved = evaluate(LLAMA, "h100", "dgx-h100", TRAINING, devices=4, cache=CACHE)
    assert (solved.time_per_batch_s or 0.0) <= times[best]


def test_where_stages_cannot_be_stated() -> None:
    """Without degrees, with chunks, and as no numbers."""
    for stages, placement, words in (
        ("3,3", "solve", "but the placement is solve; give its degrees, for example 2x1x1"),
        ("3,3", "expert", "but the placement is expert"),
        ("3,x", "2x1x1", "it must be a number of layers for each stage"),
        ((7, -1), "2x1x1", "it must be a number of layers for each stage"),
    ):
        with pytest.raises(InputError, match=words):
            named_point(LLAMA, "h100", "dgx-h100", TRAINING, placement, devices=4, stages=stages)
    chunks = replace(TRAINING, pipeline_schedule="interleaved", interleave=2)
    with pytest.raises(InputError, match="stages of several chunks are even parts"):
        run((2, 2, 2), chunks)


def test_a_fix_with_other_stages_drops_them() -> None:
    """Wider tensor-parallel groups keep them, deeper pipelines cannot."""
    named = named_point(LLAMA, "h100", "dgx-h100", TRAINING, "2x1x1", devices=8, stages="2,4")
    point = named.point
    wider = applied(point, Step("tensor", degree=2))
    assert wider.stages == (2, 4) and changed_options(point, wider) == ("--placement 2x1x2",)
    deeper = applied(point, Step("pipeline", degree=4))
    assert deeper.stages is None
    assert changed_options(point, deeper) == ("--placement 4x1x1", "--stages ''")
    assert applied(point, Step("placement")).stages is None


def layer(name: str) -> LayerCost:
    """Name a layer."""
    from phaze_opt.passes.layer_cost import LayerPasses

    return LayerCost(name, LayerPasses.of(1.0, 2.0), 10, 0, 1, 1, 1)


def test_the_memory_of_a_stated_split_is_checked() -> None:
    """The stage that does not fit is named."""
    from phaze_opt.network.presets import load_cluster

    layers = tuple(layer(name) for name in NAMES)
    edges = tuple((i, i + 1) for i in range(len(NAMES) - 1))
    training = Training(8, 1)
    problem = PlacementProblem({1: layers}, edges, load_cluster("dgx-h100", 4), training, 400, 1e9)
    assert solve_placement(problem, Degrees(2, 1, 1)).stages
    with pytest.raises(InfeasibleError, match=r"Stage 1 of 2 \('embedding' to 'block.12'\)"):
        solve_placement(problem, Degrees(2, 1, 1), (13, 1))

"""The lower bound of the placement, against the placement itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, make_dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.degrees import Degrees
from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.handled import HANDLED
from phaze_opt.passes.layer_cost import LayerCost, LayerPasses, LeastLayers, PassCost
from phaze_opt.passes.paired import with_pairs
from phaze_opt.placement.candidate_costs import CandidateCosts
from phaze_opt.placement.collected_candidates import _Collector, collect_candidates
from phaze_opt.placement.least import LeastPlacement
from phaze_opt.placement.least_times import least_times_s
from phaze_opt.placement.placement_problem import ChipRates, PlacementProblem
from phaze_opt.placement.solve_placement import solve_placement
from phaze_opt.training import ZERO_BUBBLE, Training
from tests.benchmarks.test_bench_placement import transformer
from tests.placement.strategies import (
    accumulating,
    problems,
    seconds,
    with_experts,
    with_link,
)
from tests.strategies import fp8_weights

SLACK = 1.0 + 1e-9
PAIRING = "experts", "all"
"""Overlaps in which exchanges of tokens run beside another microbatch."""

levels = st.lists(
    st.builds(
        NetworkLevel,
        st.sampled_from([10.0, 1e3, 1e6]),
        st.sampled_from([0.0, 0.01]),
        st.sampled_from(["switch", "ring"]),
        group_size=st.sampled_from([2, 4]),
    ),
    max_size=1,
)


@st.composite
def training_problems(draw: st.DrawFn, interleave: bool = False) -> PlacementProblem:
    """Draw layers, any graph of them, a cluster, and every option of training."""
    problem = draw(with_experts(problems(most_layers=7, most_devices=16)))
    count = len(next(iter(problem.layers.values())))
    if draw(st.booleans()):
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        edges = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
        problem = replace(problem, edges=tuple(sorted(edges)))
    recompute, link = draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([0.0, 0.3]))

    def again(passes: LayerPasses) -> LayerPasses:
        return passes._replace(recompute=PassCost(recompute * passes.forward.seconds))

    layers = {
        tensor_degree: tuple(
            replace(
                layer,
                passes=again(with_link(layer.passes, *[link * (tensor_degree > 1)] * 2)),
            )
            for layer in chain
        )
        for tensor_degree, chain in problem.layers.items()
    }
    names: list[PipelineScheduleName] = ["1f1b", "gpipe", "interleaved", "zb-1p", "zb-v"]
    schedule = draw(st.sampled_from(names))
    chunks = 1
    if interleave or schedule == "interleaved":
        schedule, chunks = "interleaved", draw(st.integers(1, 3))
    splits = schedule in ZERO_BUBBLE
    training = replace(
        problem.training,
        global_batch=draw(st.sampled_from([problem.training.global_batch, 12, 64])),
        recompute="full" if recompute else "none",
        zero=draw(st.integers(0, 1 if splits else 3)),
        overlap=draw(st.sampled_from(["none", "partial", "data", *([] if splits else PAIRING)])),
        gradient_dtype=draw(st.sampled_from([None, "fp32", "bf16"])),
        **draw(fp8_weights),
        pipeline_schedule=schedule,
        interleave=chunks,
        sequence_parallel=draw(st.booleans()),
        fused_optimizer=draw(st.booleans()),
        recompute_early_stop=draw(st.booleans()),
        gather_copies=draw(st.booleans()),
        residency=draw(st.booleans()),
        rank_order=draw(st.sampled_from(["two", "solve"])),
    )
    if training.pairs_microbatches:
        parts = draw(
            st.lists(st.sampled_from([0.0, 0.5, 0.8, 1.0]), min_size=count, max_size=count)
        )
        layers = {
            degree: tuple(
                replace(layer, paired_s=part * layer.passes.seconds)
                for layer, part in zip(chain, parts, strict=True)
            )
            for degree, chain in layers.items()
        }
    (outer,) = problem.cluster.levels
    if draw(st.booleans()):
        outer = replace(outer, topology="fat-tree", taper=4.0, leaf_devices=4)
    problem = replace(
        problem,
        layers=layers,
        training=training,
        cluster=replace(problem.cluster, levels=(*draw(levels), outer)),
        collective_core_share=draw(st.sampled_from([0.0, 0.2])),
    )
    return accumulating(problem, draw(st.sampled_from([0.5, 1.0])))


def rates(problem: PlacementProblem, count: int = 1) -> ChipRates:
    """Return the rates of some accelerators that are those of the problem."""
    names = [field.name for field in fields(ChipRates)]
    return ChipRates(**{name: np.full(count, float(getattr(problem, name))) for name in names})


def layer_seconds(
    layers: tuple[LayerCost, ...], share: Any = 1.0, training: Training | None = None
) -> LeastLayers:
    """Return the least seconds of layers that are all distinct, on one accelerator.

    Under a training some of their microbatches may be in pairs.
    """
    columns = zip(
        *[[layer_pass.seconds for layer_pass in layer.passes] for layer in layers], strict=True
    )
    least = LeastLayers(*(np.array([column]).T * share for column in columns))
    if training is None:
        return least
    return with_pairs(least, np.array([[each.paired_s] for each in layers]) * share, training)


def links_s(layers: tuple[LayerCost, ...]) -> FloatArray:
    """Return for how long the tensor-parallel group of layers uses the network."""
    passes = [layer.passes for layer in layers]
    backwards = [each.backward.link_s + each.recompute.link_s for each in passes]
    return np.array([[each.forward.link_s for each in passes], backwards])


def least_s(
    problem: PlacementProblem, share: Any = 1.0, splits: bool = True, known_s: float = math.inf
) -> float:
    """Return the bound over all tensor degrees, as far as it is below what is known."""
    answers, known_each_s = [], np.array([known_s])
    for tensor_degree, layers in problem.layers.items():
        known = links_s(layers)
        bound = LeastPlacement(problem, tensor_degree, range(len(layers)), links_s=known)
        least = layer_seconds(layers, share, problem.training)
        answers.append(bound.least_s(least, rates(problem), known_each_s, splits=splits))
    return float(np.min(answers))


def most_s(problem: PlacementProblem) -> float:
    """Return the bound from above over all tensor degrees."""
    answers = []
    for tensor_degree, layers in problem.layers.items():
        bound = LeastPlacement(problem, tensor_degree, range(len(layers)))
        answers.append(bound.most_s(layer_seconds(layers), rates(problem)))
    return float(np.min(answers))


def solved_s(problem: PlacementProblem) -> float:
    """Return the time of the best placement, infinite where nothing fits."""
    try:
        return solve_placement(problem).time_per_batch_s
    except InfeasibleError:
        return math.inf


@settings(max_examples=100, deadline=None)
@given(training_problems())
def test_never_above_the_placement(problem: PlacementProblem) -> None:
    """The bound, and the looser one, are at most the time; infinite only where nothing fits."""
    looser_s, bound_s, time_s = least_s(problem, splits=False), least_s(problem), solved_s(problem)
    assert looser_s <= bound_s * SLACK
    assert bound_s <= time_s * SLACK


@settings(max_examples=100, deadline=None)
@given(training_problems())
def test_no_bound_is_lost_by_what_is_known(problem: PlacementProblem) -> None:
    """Candidates that are left out by a few numbers of theirs are none that count.

    With exchanges in every pass too, which compute hides.
    """
    for zero in (problem.training.zero, 3):
        if problem.training.splits_backward and zero > 1:
            continue
        own = replace(problem, training=replace(problem.training, zero=zero))
        bound_s = least_s(own)
        for times in (1.0 + 1e-9, 1.2):
            assert least_s(own, known_s=bound_s * times) == bound_s


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-1p", "zb-v"])
def test_no_bound_of_unequal_layers_is_lost(schedule: PipelineScheduleName) -> None:
    """A stage has at least one of them whole, which not every schedule's bound knows."""
    layers = tuple(
        LayerCost(f"layer.{place}", LayerPasses.of(1.0, backward_s), 0, 0, 0, 0, 0)
        for place, backward_s in enumerate((1.0, 0.5))
    )
    problem = PlacementProblem(
        layers={1: layers},
        edges=((0, 1),),
        cluster=Cluster("two", (NetworkLevel(10.0, 0.0, "switch"),), 2),
        training=Training(1, pipeline_schedule=schedule),
        hbm_usable_bytes=100,
        hbm_bytes_per_s=100.0,
        step_parameters_per_s=100.0,
        accumulation_parameters_per_s=100.0,
        collective_core_share=0.0,
    )
    bound_s = least_s(problem)
    assert least_s(problem, known_s=bound_s * (1.0 + 1e-9)) == bound_s


@settings(max_examples=80, deadline=None)
@given(training_problems().filter(lambda each: each.training.pairs_microbatches))
def test_never_above_microbatches_in_pairs(problem: PlacementProblem) -> None:
    """Which hide what replicas send once per batch less than the last backward does, alone."""
    assert least_s(problem, splits=False) <= least_s(problem) * SLACK
    assert least_s(problem) <= solved_s(problem) * SLACK


def test_the_last_backward_is_in_no_pair() -> None:
    """It takes longer than one beside another microbatch, and hides more of what is sent."""
    level = NetworkLevel(1e9, 0.0, "switch", group_size=None)
    cost = LayerCost("layer", LayerPasses.of(1.0, 2.0), 10**9, 0, 0, 0, 0, paired_s=1.5)
    problem = PlacementProblem(
        {1: (cost,) * 12},
        tuple(itertools.pairwise(range(12))),
        Cluster("flat", (level,), 2),
        Training(4, overlap="experts", expert_parallel=2),
        hbm_usable_bytes=1e15,
        hbm_bytes_per_s=1e15,
    )
    degrees = Degrees(1, 2, 1)
    time_s = solve_placement(problem, degrees).time_per_batch_s
    bound = LeastPlacement(problem, 1, [0] * 12, degrees)
    least = layer_seconds((cost,), training=problem.training)
    for splits in (False, True):
        (bound_s,) = bound.least_s(least, rates(problem), splits=splits)
        assert 0.9 * time_s <= bound_s <= time_s * SLACK


@settings(max_examples=60, deadline=None)
@given(
    training_problems().filter(lambda each: each.training.splits_backward),
    st.sampled_from(ZERO_BUBBLE),
)
def test_never_above_backwards_in_two_parts(
    problem: PlacementProblem, schedule: PipelineScheduleName
) -> None:
    """Whose weight gradients hide what replicas send no more than a whole backward does."""
    training = replace(problem.training, pipeline_schedule=schedule)
    problem = replace(problem, training=training)
    assert least_s(problem, splits=False) <= least_s(problem) * SLACK
    assert least_s(problem) <= solved_s(problem) * SLACK


@settings(max_examples=20, deadline=None)
@given(training_problems().filter(lambda each: each.training.pairs_microbatches))
def test_a_single_microbatch_is_in_no_pair(problem: PlacementProblem) -> None:
    """Its bound is that without pairs, to the bit."""
    training = replace(problem.training, global_batch=1, microbatch=1)
    single = replace(problem, training=training)
    assert least_s(single) == least_s(replace(single, training=replace(training, overlap="data")))


def test_replicas_wait_for_the_network_that_others_use() -> None:
    """A group that sends through most of the backward lets replicas hide little of their own."""
    cost = LayerCost("layer", LayerPasses.of(1.0, 1.0), 10**9, 0, 0, 0, 0)
    sending = cost.with_fields(passes=LayerPasses(*[PassCost(1.0, 0.9)] * 2))
    level = NetworkLevel(4e9, 0.0, "switch", group_size=None)
    training = Training(global_batch=4, overlap="data")
    edges = tuple(itertools.pairwise(range(4)))
    one, other = (
        PlacementProblem(
            {2: (layer,) * 4}, edges, Cluster("flat", (level,), 8), training, 1e15, 1e15
        )
        for layer in (cost, sending)
    )
    assert least_s(one) < least_s(other) <= solved_s(other) * SLACK
    assert least_s(other) > 0.95 * solved_s(other)


@settings(max_examples=100, deadline=None)
@given(st.one_of(training_problems(), training_problems(interleave=True)))
def test_the_fastest_placement_is_never_above_the_longest_time(problem: PlacementProblem) -> None:
    """Where all layers fit one stage, whatever is chosen takes no longer."""
    longest_s = most_s(problem)
    assert solved_s(problem) <= longest_s
    assert longest_s == math.inf or least_s(problem) <= longest_s


def test_chunks_that_lie_apart_may_fit_where_no_run_of_layers_does() -> None:
    """Two stages of interleaved chunks hold the large layers of both ends by turns."""
    layers = tuple(
        LayerCost(f"layer.{index}", LayerPasses.of(1.0, 1.0), parameters, 0, 0, 0, 0)
        for index, parameters in enumerate([5, 5, 1, 1, 10, 18])
    )
    problem = PlacementProblem(
        layers={1: layers},
        edges=(),
        cluster=Cluster("two", (NetworkLevel(10.0, 0.0, "switch"),), 2),
        training=Training(
            12, 1, optimizer="adam", pipeline_schedule="interleaved", interleave=2, overlap="none"
        ),
        hbm_usable_bytes=370.0,
        hbm_bytes_per_s=100.0,
    )
    assert least_s(problem) <= solved_s(problem) * SLACK < math.inf


@settings(max_examples=40, deadline=None)
@given(training_problems(interleave=True))
def test_never_above_interleaved_pipelines(problem: PlacementProblem) -> None:
    """The same for several chunks per stage."""
    assert least_s(problem) <= solved_s(problem) * SLACK


@settings(max_examples=60, deadline=None)
@given(st.one_of(training_problems(), training_problems(interleave=True)), st.data())
def test_given_degrees_are_never_faster(problem: PlacementProblem, data: st.DataObject) -> None:
    """The bound of given degrees is at most their time, and at least the bound of all."""
    tensor_degree = data.draw(st.sampled_from(sorted(problem.layers)))
    layers = problem.layers[tensor_degree]
    if data.draw(st.booleans()):
        first, *others = layers
        twins = [replace(first, name=layer.name, tied_parameters=0) for layer in others[:-1]]
        layers = (first, *twins, *others[-1:])
        problem = replace(problem, layers={tensor_degree: layers})
    stages, replicas = data.draw(st.integers(1, len(layers))), data.draw(st.integers(1, 4))
    degrees = Degrees(stages, replicas, tensor_degree)
    # Layers that share parameters are different ones, as an embedding and a head are.
    nameless = [
        replace(layer, name=layer.name if layer.tied_parameters else "") for layer in layers
    ]
    kinds = tuple(dict.fromkeys(nameless))
    rows = [kinds.index(layer) for layer in nameless]
    found_s = [
        float(
            LeastPlacement(problem, tensor_degree, rows, given).least_s(
                layer_seconds(kinds, training=problem.training), rates(problem), splits=splits
            )[0]
        )
        for given, splits in ((degrees, True), (degrees, False), (None, True))
    ]
    try:
        time_s = solve_placement(problem, degrees).time_per_batch_s
    except InfeasibleError:
        time_s = math.inf
    assert found_s[1] <= found_s[0] * SLACK
    assert found_s[2] <= found_s[0] * SLACK
    assert found_s[0] <= time_s * SLACK


@settings(max_examples=40, deadline=None)
@given(training_problems(), st.lists(st.floats(0.2, 1.0), min_size=7, max_size=7), st.booleans())
def test_smaller_seconds_give_a_smaller_bound(
    problem: PlacementProblem, shares: list[float], splits: bool
) -> None:
    """The bound is monotone in the seconds of every layer."""
    count = len(next(iter(problem.layers.values())))
    share = np.array([shares[:count]]).T
    assert least_s(problem, share, splits) <= least_s(problem, splits=splits) * SLACK


@settings(max_examples=30, deadline=None)
@given(training_problems(), st.floats(1.0, 4.0))
def test_more_memory_and_bandwidth_give_a_smaller_bound(
    problem: PlacementProblem, factor: float
) -> None:
    """The bound is monotone in what the chip gives."""
    more = replace(
        problem,
        hbm_usable_bytes=problem.hbm_usable_bytes * factor,
        hbm_bytes_per_s=problem.hbm_bytes_per_s * factor,
        step_parameters_per_s=problem.step_parameters_per_s * factor,
        accumulation_parameters_per_s=problem.accumulation_parameters_per_s * factor,
    )
    assert least_s(more) <= least_s(problem) * SLACK


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-1p"])
def test_what_ends_the_search_bounds_every_candidate(schedule: PipelineScheduleName) -> None:
    """Else a slower optimizer lets another candidate be looked at, whose bound is looser."""
    seconds = ((0.5, 0.25), (1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (1.0, 0.25), (0.5, 0.5), (0.5, 0.5))
    layers = [
        LayerCost("layer", LayerPasses(PassCost(f, 0.0), PassCost(b, 0.0)), parameters, 0, 0, 0, 0)
        for (f, b), parameters in zip(seconds, (96, *[0] * 6), strict=True)
    ]
    cluster = Cluster("flat", (NetworkLevel(10.0, 0.0, "switch"),), 7)
    problem = PlacementProblem(
        {1: tuple(layers)},
        tuple((at, at + 1) for at in range(6)),
        cluster,
        Training(5, 1, optimizer="sgd", pipeline_schedule=schedule, overlap="none"),
        hbm_usable_bytes=500.0,
        hbm_bytes_per_s=1e4,
        step_parameters_per_s=50.0,
        accumulation_parameters_per_s=50.0,
    )
    bounds_s = [
        least_s(replace(problem, step_parameters_per_s=rate)) for rate in (25.0, 50.0, 60.0, 100.0)
    ]
    assert all(slow >= fast for slow, fast in itertools.pairwise(bounds_s))
    assert bounds_s[-1] <= solved_s(problem)


@settings(max_examples=30, deadline=None)
@given(training_problems(), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5))
def test_accelerators_do_not_see_one_another(
    problem: PlacementProblem, factors: list[float]
) -> None:
    """Many accelerators at once, with several memories, have the bounds of each alone."""
    tensor_degree, layers = next(iter(problem.layers.items()))
    bound = LeastPlacement(problem, tensor_degree, range(len(layers)))
    together = LeastLayers(
        *(getattr(layer_seconds(layers), f"{name}_s") * factors for name in LayerPasses._fields)
    )
    memories = problem.hbm_usable_bytes * np.array([1.0 + (f > 1.0) for f in factors])
    all_rates = replace(rates(problem, len(factors)), hbm_usable_bytes=memories)
    answers = bound.least_s(together, all_rates)
    known = bound.least_s(together, all_rates, answers * 0.9)
    for index, factor in enumerate(factors):
        own = replace(rates(problem), hbm_usable_bytes=memories[index : index + 1])
        (alone,) = bound.least_s(layer_seconds(layers, factor), own)
        assert answers[index] == alone
        assert known[index] == answers[index] * 0.9


def test_accelerators_with_equal_seconds_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chips in any order, those that differ in nothing that counts share a bound."""
    rows = []

    def counted(distinct: Any, seconds: Any, *others: Any) -> Any:
        rows.append(len(seconds))
        return least_times_s(distinct, seconds, *others)

    monkeypatch.setattr("phaze_opt.placement.least.least_times_s", counted)
    problem = transformer(6, True, 40e9)
    bound, some = LeastPlacement(problem, 1, range(6)), layer_seconds(problem.layers[1])
    factors = np.tile([1.0, 3.0, 2.0], 5)
    together = LeastLayers(*(getattr(some, f"{name}_s") * factors for name in LayerPasses._fields))
    answers = bound.least_s(together, rates(problem, 15))
    assert rows == [3]
    assert answers.tolist() == np.tile(answers[:3], 5).tolist()
    assert answers[0] < answers[2] < answers[1]


@settings(max_examples=30, deadline=None)
@given(problems(most_layers=6, most_devices=16))
def test_is_infinite_where_nothing_fits(problem: PlacementProblem) -> None:
    """A plain pipeline fits the memory where the bound says so."""
    assert math.isinf(least_s(problem)) == math.isinf(solved_s(problem))


@pytest.mark.parametrize("repeating", [True, False])
@pytest.mark.parametrize(
    ("options", "share"),
    [({"overlap": "none"}, 0.995), ({}, 0.995), ({"zero": 1}, 0.995), ({"zero": 3}, 0.97)],
)
def test_is_near_the_placement_of_a_transformer(
    repeating: bool, options: dict[str, Any], share: float
) -> None:
    """For layers of one kind on 1,024 devices the bound is at most 0.5 % too low (ZeRO 3: 3 %)."""
    problem = transformer(26, repeating, 40e9)
    problem = replace(problem, training=replace(problem.training, **options))
    assert least_s(problem) > share * solved_s(problem)


@settings(max_examples=40, deadline=None)
@given(seconds, seconds, st.integers(1, 8), st.sampled_from(["sgd", "adam"]))
def test_a_single_layer_is_exact(
    forward_s: float, backward_s: float, microbatches: int, optimizer: Any
) -> None:
    """One layer on one device takes its passes, accumulation and step, and so does the bound."""
    problem = PlacementProblem(
        layers={1: (LayerCost("only", LayerPasses.of(forward_s, backward_s), 100, 0, 1, 1, 0),)},
        edges=(),
        cluster=Cluster("one", (NetworkLevel(1e3, 0.0, "switch"),), 1),
        training=Training(microbatches, optimizer=optimizer),
        hbm_usable_bytes=1e9,
        hbm_bytes_per_s=1e4,
    )
    assert least_s(problem) == pytest.approx(solved_s(problem), rel=1e-9)


def test_every_option_is_declared() -> None:
    """The table names the options that there are, and no others."""
    assert set(HANDLED["Training"]) == {field.name for field in fields(Training)}


def test_an_unknown_option_is_refused() -> None:
    """An option, or a value, that is added to the training later is not ignored."""
    wider = make_dataclass(
        "Wider", [("new_option", int, 1)], bases=(Training,), frozen=True, repr=False
    )
    problem = transformer(26, True, 40e9)
    with pytest.raises(InputError, match="new_option"):
        LeastPlacement(replace(problem, training=wider(8)), 1, [0])
    newer = Training(8)
    object.__setattr__(newer, "zero", 4)
    with pytest.raises(InputError, match="zero = 4"):
        LeastPlacement(replace(problem, training=newer), 1, [0])


@settings(max_examples=30, deadline=None)
@given(training_problems(), st.integers(0, 50))
def test_what_runs_share_is_what_each_has_alone(problem: PlacementProblem, kept: int) -> None:
    """The candidates of runs that keep something else are those that each would collect itself."""
    tensor_degree = min(problem.layers)
    chain = problem.layers[tensor_degree]
    more = tuple(replace(layer, stash_bytes=layer.stash_bytes + kept) for layer in chain)
    for layers in (chain, more):
        alone = replace(problem, layers={tensor_degree: layers}, least=None)
        costs, distinct = CandidateCosts(alone), np.arange(len(layers))
        shared, own = (
            collect_candidates(costs, distinct),
            _Collector(costs, distinct, None, None).collect(),
        )
        for stages, other in zip(shared.fitting(1000.0), own.fitting(1000.0), strict=True):
            np.testing.assert_array_equal(stages, other)

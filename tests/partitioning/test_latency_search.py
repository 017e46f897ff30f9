import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.dnn_format import DnnProblem, read_dnn_partitioning
from phaze_opt.partitioning.downsets import TooManyDownsetsError
from phaze_opt.partitioning.integer_program import least_latency
from phaze_opt.partitioning.latency import CPU, greedy, latency_of
from phaze_opt.partitioning.latency_search import _LatencySearch, search_latency
from phaze_opt.partitioning.unit_graph import UnitGraph, build_unit_graph
from tests.partitioning.test_dag import graphs

DATA = Path(__file__).parent.parent / "data" / "placement" / "dnn-partitioning"
STEPS = 10**7


def operators_of_bert() -> DnnProblem:
    """Return the operators of three layers on the devices of the published latency workloads."""
    name = "throughput-operators-bert_l-3_inference.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    return replace(problem, memory_bytes=600.0 * 2**20, accelerators=4, cpus=8)


def by_all_placements(graph: UnitGraph) -> float:
    """Return the least latency by trying every device for every unit."""
    devices = range(CPU, graph.accelerators + 1)
    placements = itertools.product(devices, repeat=len(graph.units))
    return min(latency_of(graph, placement) for placement in placements)


@settings(max_examples=100, deadline=None)
@given(graphs(most=6))
def test_equals_brute_force(problem: DnnProblem) -> None:
    """On small graphs the search finds and proves the least latency of all placements."""
    graph = build_unit_graph(problem)
    best = by_all_placements(graph)
    try:
        device, bound = search_latency(graph, math.inf, STEPS)
    except InfeasibleError:
        assert math.isinf(best)
        return
    assert bound == pytest.approx(best, rel=1e-9)
    if device is not None:
        assert latency_of(graph, device) == pytest.approx(best, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(graphs(most=6), st.integers(1, 2000))
def test_any_effort_gives_a_bound(problem: DnnProblem, steps: int) -> None:
    """However soon the search gives up, its bound is one, and its placement one that fits."""
    graph = build_unit_graph(problem)
    best = by_all_placements(graph)
    try:
        device, bound = search_latency(graph, latency_of(graph, greedy(graph)), steps)
    except InfeasibleError:
        return
    assert bound <= best * (1.0 + 1e-9)
    assert device is None or math.isfinite(latency_of(graph, device))


@settings(max_examples=30, deadline=None)
@given(graphs(most=5))
def test_tails_are_bounds(problem: DnnProblem) -> None:
    """No placement ends sooner after the inputs of a unit are there than its tail says."""
    graph = build_unit_graph(problem)
    try:
        search = _LatencySearch(graph, 1000)
    except InfeasibleError:
        return
    search.best = latency_of(graph, greedy(graph))
    search.bound_tails(STEPS)
    assert (search.tails[1:] <= search.tails[:-1]).all()
    assert (search.heads + search.tails[-1]).max() <= by_all_placements(graph) * (1.0 + 1e-9)


def test_operators_of_bert_are_proven() -> None:
    """A graph on which CP-SAT leaves a gap of half the latency is solved."""
    split = least_latency(operators_of_bert())
    assert split.value == pytest.approx(414.4295114903548)
    assert (split.status, split.gap) == ("optimal", 0.0)


def test_too_many_downsets() -> None:
    """A graph with more downsets than the limit is left to the integer program."""
    with pytest.raises(TooManyDownsetsError):
        search_latency(build_unit_graph(operators_of_bert()), math.inf, STEPS, most_downsets=100)

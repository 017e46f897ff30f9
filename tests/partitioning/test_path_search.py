import itertools
from functools import partial

import networkx as nx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning import path_arrays
from phaze_opt.partitioning.dag import (
    device_load,
    largest_load,
    least_latencies,
    share_bound,
    speeds,
    split_contiguous,
)
from phaze_opt.partitioning.dnn_format import DnnNode, DnnProblem
from phaze_opt.partitioning.merged_splits import Stages
from phaze_opt.partitioning.path_arrays import cover_by_paths
from phaze_opt.partitioning.path_search import STEPS, PathSearch, search_paths
from phaze_opt.partitioning.unit_graph import UnitGraph, build_unit_graph
from tests.partitioning.parallel_tracks import tracks
from tests.partitioning.test_dag import graphs

AFTER_A_CPU = DnnProblem(
    memory_bytes=9.0,
    accelerators=1,
    cpus=1,
    nodes=tuple(
        DnnNode(id=k, cpu_latency=cpu, accelerator_latency=on, supported=True, size_bytes=1.0)
        for k, (cpu, on) in enumerate([(3.0, 4.0), (6.0, 2.0), (6.0, 1.0), (3.0, 1.0), (3.0, 1.0)])
    ),
    edges=((0, 2), (2, 3), (2, 4)),
    output_costs=(1.0,) * 5,
)
"""The first node may run on either device, and the accelerator of the best split comes second."""


def search(graph: UnitGraph, steps: int = STEPS) -> PathSearch:
    """Prepare the search over paths."""
    found = search_paths(graph, least_latencies(graph), speeds(graph), steps)
    assert found is not None
    return found


def check_split(graph: UnitGraph, stages: Stages, limit: float) -> None:
    """Every unit is on one device, edges lead to later devices, and loads are within a limit."""
    stage_of = {unit: place for place, (_, units) in enumerate(stages) for unit in units}
    assert sorted(stage_of) == list(range(len(graph.units)))
    assert sum(len(units) for _, units in stages) == len(graph.units)
    assert all(stage_of[source] <= stage_of[to] for source, to in graph.edges)
    kinds = [kind for kind, _ in stages]
    assert kinds.count("accelerator") <= graph.accelerators
    assert kinds.count("cpu") <= graph.cpus
    assert all(device_load(graph, *device) <= limit * (1 + 1e-9) for device in stages)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.data())
def test_paths_are_the_fewest(count: int, data: st.DataObject) -> None:
    """Every unit is on one path along edges; a largest matching has a pair for all but one each."""
    pairs = [p for p in itertools.combinations(range(count), 2) if data.draw(st.booleans())]
    paths = cover_by_paths(count, pairs)
    assert sorted(unit for path in paths for unit in path) == list(range(count))
    assert {pair for path in paths for pair in itertools.pairwise(path)} <= set(pairs)
    both = nx.Graph([(("from", source), ("to", to)) for source, to in pairs])
    from_nodes = {node for node in both if node[0] == "from"}
    matching = nx.bipartite.maximum_matching(both, from_nodes) if pairs else {}
    assert len(paths) == count - len(matching) // 2


@settings(max_examples=60, deadline=None)
@example(AFTER_A_CPU, 1.0, 64)
@given(graphs(), st.sampled_from([0.5, 0.9, 1.0, 1.2]), st.sampled_from([0, 1, 64]))
def test_splits_within_a_limit(problem: DnnProblem, share: float, shared: int) -> None:
    """A split within a limit is found exactly if the optimum is; if few tensors count, at least."""
    graph = build_unit_graph(problem)
    try:
        least = split_contiguous(graph).value
    except InfeasibleError:
        return
    limit = least * share
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(path_arrays, "MOST_SHARED", shared)
        found = search(graph).split_within(limit, STEPS)
    if share >= 1.0:
        assert found is not None
    if shared == 64:
        assert (found is not None) == (share >= 1.0)
        if found is not None:
            check_split(graph, found, limit)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 4),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([(0.01, 0.5), (0.5, 4.0)]),
    st.sampled_from([20, 300, 3_000, 10**7]),
)
def test_bound_and_split_close_in_on_the_optimum(
    seed: int, count: int, crossing: float, costs: tuple[float, float], steps: int
) -> None:
    """With any effort the optimum lies between bound and split; with enough they are equal."""
    graph = build_unit_graph(tracks(seed, count, 14, crossing, costs))
    least = split_contiguous(graph).value
    everything: Stages = [("accelerator", tuple(range(len(graph.units))))]
    load_of = partial(largest_load, graph)
    low, best = search(graph, steps).between(share_bound(graph), everything, load_of)
    check_split(graph, best, largest_load(graph, everything))
    value = largest_load(graph, best)
    assert share_bound(graph) <= low <= least * (1 + 1e-9) <= value * (1 + 1e-8)
    if steps == 10**7:
        assert low == value == pytest.approx(least, rel=1e-9)


def test_more_effort_is_never_worse() -> None:
    """A larger effort gives no lower bound and no split that are worse, and ends with the proof."""
    graph = build_unit_graph(tracks(3, 4, 40, 0.1, (0.5, 4.0)))
    before = split_contiguous(graph, most_downsets=100, steps=0)
    for steps in (10_000, 100_000, 10**8):
        split = split_contiguous(graph, most_downsets=100, steps=steps)
        assert before.bound <= split.bound
        assert split.value <= before.value
        before = split
    assert before.status == "optimal"
    assert before.value == pytest.approx(split_contiguous(graph).value, rel=1e-9)


def test_too_many_paths_are_not_searched() -> None:
    """Where positions have too many combinations, there is no search, and no error."""
    graph = build_unit_graph(tracks(1, 12, 120, 0.0, (0.5, 4.0)))
    assert search_paths(graph, least_latencies(graph), speeds(graph)) is None
    assert split_contiguous(graph, most_downsets=1000).status == "feasible"

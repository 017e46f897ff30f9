import csv
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.dag import device_load, split_contiguous
from phaze_opt.partitioning.dnn_format import DnnNode, DnnProblem, read_dnn_partitioning
from phaze_opt.partitioning.unit_graph import build_unit_graph
from tests.partitioning.parallel_tracks import tracks

DATA = Path(__file__).parent.parent / "data" / "placement" / "dnn-partitioning"
EXPECTED = list(csv.DictReader((DATA / "expected.csv").read_text("utf-8").splitlines()))


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["file"])
def test_equals_the_published_optimum(row: dict[str, str]) -> None:
    """The largest load equals the published optimum, proven, with a downset count as published."""
    problem = read_dnn_partitioning((DATA / row["file"]).read_bytes(), row["file"])
    totals: set[int] = set()
    split = split_contiguous(build_unit_graph(problem), progress=lambda _, total: totals.add(total))
    assert split.value == pytest.approx(float(row["optimal_max_load"]), rel=1e-6)
    assert (split.status, split.gap) == ("optimal", 0.0)
    assert totals == {int(row["ideals"])}


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> DnnProblem:
    """Draw a small inference graph with colocation, and devices of both kinds."""
    count = draw(st.integers(1, most))
    number = st.integers(1, 9).map(float)
    pairs = [p for p in itertools.combinations(range(count), 2) if draw(st.booleans())]
    nodes = tuple(
        DnnNode(
            id=index,
            cpu_latency=3 * draw(number),
            accelerator_latency=draw(number),
            supported=draw(st.integers(0, 9)) > 0,
            backward=False,
            colocation=draw(st.sampled_from([None, None, None, 0, 1])),
            size_bytes=draw(number),
        )
        for index in range(count)
    )
    return DnnProblem(
        memory_bytes=draw(st.sampled_from([9.0, 20.0, 100.0])),
        accelerators=draw(st.integers(0, 3)),
        cpus=draw(st.integers(0, 2)),
        nodes=nodes,
        edges=tuple(pairs),
        output_costs=tuple(draw(number) for _ in nodes),
    )


def brute_force(problem: DnnProblem, contiguous: bool) -> float:
    """Return the least largest load by trying every device for every node."""
    kinds = ["accelerator"] * problem.accelerators + ["cpu"] * problem.cpus
    best = math.inf
    for device in itertools.product(range(len(kinds)), repeat=len(problem.nodes)):
        groups = [
            {index for index, where in enumerate(device) if where == number}
            for number in range(len(kinds))
        ]
        if not _allowed(problem, groups, kinds) or (contiguous and _cyclic(problem, device)):
            continue
        loads = [
            _load(problem, group, kind) for group, kind in zip(groups, kinds, strict=True) if group
        ]
        best = min(best, max(loads))
    return best


def _allowed(problem: DnnProblem, groups: list[set[int]], kinds: list[str]) -> bool:
    """Whether colocation, support and memory are respected."""
    for group, kind in zip(groups, kinds, strict=True):
        nodes = [problem.nodes[index] for index in group]
        if kind == "accelerator":
            if not all(node.supported for node in nodes):
                return False
            if sum(node.size_bytes for node in nodes) > problem.memory_bytes:
                return False
        classes = {node.colocation for node in nodes if node.colocation is not None}
        outside = set(range(len(problem.nodes))) - group
        if any(problem.nodes[index].colocation in classes for index in outside):
            return False
    return True


def _cyclic(problem: DnnProblem, device: tuple[int, ...]) -> bool:
    """Whether the devices cannot be put in an order that all edges follow."""
    pairs = {(device[s], device[d]) for s, d in problem.edges if device[s] != device[d]}
    used = sorted(set(device))
    return not any(
        all(order.index(s) < order.index(d) for s, d in pairs)
        for order in itertools.permutations(used)
    )


def _load(problem: DnnProblem, group: set[int], kind: str) -> float:
    """Return a device's load by the definition."""
    if kind == "cpu":
        return sum(problem.nodes[index].cpu_latency for index in group)
    crossing = {s for s, d in problem.edges if (s in group) != (d in group)}
    work = sum(problem.nodes[index].accelerator_latency for index in group)
    return work + sum(problem.output_costs[index] for index in crossing)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_equals_brute_force(problem: DnnProblem) -> None:
    """The dynamic program finds the least largest load of all contiguous splits."""
    best = brute_force(problem, contiguous=True)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            split_contiguous(build_unit_graph(problem))
    else:
        assert split_contiguous(build_unit_graph(problem)).value == pytest.approx(best)


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_loads_follow_the_definition(problem: DnnProblem) -> None:
    """Every unit is on one device, and the loads are those of the definition."""
    graph = build_unit_graph(problem)
    try:
        split = split_contiguous(graph)
    except InfeasibleError:
        return
    placed = sorted(unit for _, units in split.devices for unit in units)
    assert placed == list(range(len(graph.units)))
    loads = [device_load(graph, kind, units) for kind, units in split.devices]
    assert list(split.loads) == loads
    assert split.value == max(loads)


@settings(max_examples=50, deadline=None)
@given(graphs(), st.sampled_from([0, 50, 500, 10**6]))
def test_one_order_is_never_better(problem: DnnProblem, steps: int) -> None:
    """One topological order, merged units and paths give no better split than all downsets."""
    graph = build_unit_graph(problem)
    try:
        linear = split_contiguous(graph, most_downsets=1, steps=steps)
    except InfeasibleError:
        return
    assert linear.value >= split_contiguous(graph).value * (1 - 1e-12)
    assert linear.bound <= min(linear.value, split_contiguous(graph).value * (1 + 1e-12))
    stage_of = {unit: place for place, (_, units) in enumerate(linear.devices) for unit in units}
    assert sorted(stage_of) == list(range(len(graph.units)))
    assert all(stage_of[source] <= stage_of[destination] for source, destination in graph.edges)


def test_too_many_downsets_fall_back_to_one_order() -> None:
    """A graph with too many downsets gets an answer with the status feasible."""
    row = EXPECTED[-1]
    problem = read_dnn_partitioning((DATA / row["file"]).read_bytes(), row["file"])
    split = split_contiguous(build_unit_graph(problem), most_downsets=100, steps=0)
    assert split.status == "feasible"
    assert split.gap > 0
    assert split.value >= float(row["optimal_max_load"]) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("memory", "accelerators", "message"),
    [
        (100.0, 0, "neither an accelerator nor a CPU"),
        (1.0, 2, "needs 5 B, 4 B more than the 1 B of an accelerator"),
        (5.0, 1, "together need 10 B, 5 B more than the 5 B of 1 accelerators"),
    ],
)
def test_misfits_are_explained(memory: float, accelerators: int, message: str) -> None:
    """The error says what does not fit, and how many bytes are missing."""
    node = DnnNode(id=0, cpu_latency=1.0, accelerator_latency=1.0, supported=True, size_bytes=5.0)
    problem = DnnProblem(memory, accelerators, 0, (node, node), ((0, 1),), (1.0, 1.0))
    with pytest.raises(InfeasibleError, match=message):
        split_contiguous(build_unit_graph(problem))


def test_a_few_more_downsets_are_searched_where_the_gap_is_large() -> None:
    """Up to half as many again as the limit: then the answer is that of all downsets."""
    graph = build_unit_graph(tracks(1, 3, 18, 0.0, (0.5, 4.0)))
    totals: list[int] = []
    best = split_contiguous(graph, progress=lambda _, total: totals.append(total))
    count = totals[-1]
    near = split_contiguous(graph, most_downsets=count * 3 // 4, steps=0)
    far = split_contiguous(graph, most_downsets=count // 2, steps=0)
    assert (near.value, near.status, far.status) == (best.value, "optimal", "feasible")
    assert far.bound < 0.97 * far.value

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InfeasibleError
from phaze_opt.partitioning.phaze_format import PhazeEdge, PhazeNode, PhazeProblem, read_phaze
from phaze_opt.partitioning.published import solve_published

DATA = Path(__file__).parent.parent / "data" / "placement" / "phaze"
EXPECTED = list(csv.DictReader((DATA / "expected.csv").read_text("utf-8").splitlines()))


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["tag"])
def test_equals_the_published_solver(row: dict[str, str]) -> None:
    """Times equal the published ones to 1e-9, infeasible files are refused, branches are solved."""
    problem = read_phaze((DATA / row["file"]).read_bytes(), row["file"])
    if row["status"] == "infeasible":
        with pytest.raises(InfeasibleError):
            solve_published(problem)
        return
    answer = solve_published(problem)
    if row["status"] == "optimal":
        assert answer.time_per_batch_s == pytest.approx(float(row["time_per_batch_s"]), rel=1e-9)
        degrees = row["pipeline_stages"], row["data_parallel"], row["tensor_parallel"]
        assert (answer.pipeline, answer.data, answer.tensor) == tuple(map(int, degrees))


@st.composite
def graphs(draw: st.DrawFn) -> PhazeProblem:
    """Draw up to five layers with any forward edges at two tensor degrees."""
    count = draw(st.integers(1, 5))
    number = st.floats(0.1, 2.0)
    pairs = [p for p in itertools.combinations(range(count), 2) if draw(st.booleans())]

    def nodes(tensor_degree: int) -> tuple[PhazeNode, ...]:
        return tuple(
            PhazeNode(
                index,
                draw(number),
                draw(number),
                draw(number),
                draw(number),
                tensor_degree > 1 and draw(st.booleans()),
            )
            for index in range(count)
        )

    def edges() -> tuple[PhazeEdge, ...]:
        return tuple(PhazeEdge(source, target, draw(number)) for source, target in pairs)

    return PhazeProblem(
        memory_bytes=draw(st.sampled_from([4.0, 8.0, 1e3])),
        devices=draw(st.integers(1, 6)),
        bandwidth_bytes_per_s=draw(st.sampled_from([1.0, 10.0])),
        microbatches=draw(st.integers(1, 9)),
        recompute=draw(st.booleans()),
        optimizer=draw(st.sampled_from(["SGD", "Adam"])),
        nodes={1: nodes(1), 2: nodes(2)},
        edges={1: edges(), 2: edges()},
    )


def stage_cost(
    problem: PhazeProblem, tensor_degree: int, stage: set[int], place: int
) -> tuple[float, float]:
    """Return load and bytes of a stage straight from the published rules."""
    nodes, edges = problem.nodes[tensor_degree], problem.edges[tensor_degree]
    bandwidth = problem.bandwidth_bytes_per_s
    inside = [e for e in edges if e.source in stage and e.destination in stage]
    entering = [e for e in edges if e.source not in stage and e.destination in stage]
    leaving = [e for e in edges if e.source in stage and e.destination not in stage]

    def forward(wait: bool) -> float:
        finish: dict[int, float] = {}
        for node in sorted(stage):
            starts = [finish[e.source] for e in inside if e.destination == node]
            starts += [e.bytes / bandwidth for e in entering if wait and e.destination == node]
            finish[node] = max(starts, default=0.0) + nodes[node].forward_s
        return max(finish.values())

    def backward(begin: float) -> float:
        finish: dict[int, float] = {}
        for node in sorted(stage, reverse=True):
            starts = [finish[e.destination] for e in inside if e.source == node]
            starts += [e.bytes / bandwidth for e in leaving if e.source == node]
            finish[node] = max([begin, *starts]) + nodes[node].backward_s
        return max(finish.values())

    again = problem.recompute and place > 1
    load = forward(True) + backward(forward(False) if again else 0.0)
    parameters = sum(nodes[node].parameter_bytes for node in stage)
    activations = sum(nodes[node].activation_bytes for node in stage)
    stash = sum(e.bytes for e in entering) if problem.recompute else activations
    copies = 3 if problem.optimizer == "Adam" else 2
    return load, copies * parameters + activations + (place - 1) * stash


def partitions(problem: PhazeProblem, tensor_degree: int) -> list[list[set[int]]]:
    """Return every sequence of stages in which no edge goes back."""
    count, edges = len(problem.nodes[tensor_degree]), problem.edges[tensor_degree]
    found = []
    for stages in range(1, count + 1):
        for labels in itertools.product(range(stages), repeat=count):
            if len(set(labels)) == stages and all(
                labels[e.source] <= labels[e.destination] for e in edges
            ):
                found.append(
                    [{i for i in range(count) if labels[i] == stage} for stage in range(stages)]
                )
    return found


def brute_force(problem: PhazeProblem) -> float:
    """Return the least time over all tensor degrees, splits and data degrees."""
    best = math.inf
    for tensor_degree, nodes in problem.nodes.items():
        for stages in partitions(problem, tensor_degree):
            costs = [
                stage_cost(problem, tensor_degree, stage, len(stages) - index)
                for index, stage in enumerate(stages)
            ]
            if any(memory > problem.memory_bytes for _, memory in costs):
                continue
            devices = sum(
                tensor_degree if any(nodes[node].tensor_parallel for node in stage) else 1
                for stage in stages
            )
            first = sum(nodes[node].parameter_bytes for node in stages[0])
            for data in range(1, min(problem.devices // devices, problem.microbatches) + 1):
                turns = math.ceil(problem.microbatches / data) + len(stages) - 1
                time_s = turns * max(load for load, _ in costs)
                time_s += 4 * (data - 1) / data * first / problem.bandwidth_bytes_per_s
                best = min(best, time_s)
    return best


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_equals_brute_force_on_any_graph(problem: PhazeProblem) -> None:
    """The dynamic program over downsets finds the least time of all splits of small graphs."""
    best = brute_force(problem)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            solve_published(problem)
    else:
        assert solve_published(problem).time_per_batch_s == pytest.approx(best, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(graphs(), st.sampled_from([1e-12, 1e6]))
def test_time_units_do_not_matter(problem: PhazeProblem, scale: float) -> None:
    """Tiny and huge time units give the same degrees and the scaled time."""
    scaled = replace(
        problem,
        bandwidth_bytes_per_s=problem.bandwidth_bytes_per_s / scale,
        nodes={
            tensor_degree: tuple(
                msgspec.structs.replace(
                    n, forward_s=n.forward_s * scale, backward_s=n.backward_s * scale
                )
                for n in nodes
            )
            for tensor_degree, nodes in problem.nodes.items()
        },
    )
    try:
        answer = solve_published(problem)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            solve_published(scaled)
        return
    expected = answer.time_per_batch_s * scale
    assert solve_published(scaled).time_per_batch_s == pytest.approx(expected, rel=1e-9)


def test_misfit_says_by_how_much() -> None:
    """An infeasible file names what does not fit and by how much."""
    problem = read_phaze((DATA / "064.json").read_bytes(), "064.json")
    with pytest.raises(InfeasibleError, match=r"Layer 8 alone.* more than the .* of a device"):
        solve_published(problem)
    problem = read_phaze((DATA / "024.json").read_bytes(), "024.json")
    with pytest.raises(InfeasibleError, match=r"2 stages at the tensor degree 4.* more\."):
        solve_published(problem)

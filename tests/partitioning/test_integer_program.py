import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from phaze_opt.errors import InfeasibleError, InputError
from phaze_opt.partitioning.dag import share_bound, split_contiguous
from phaze_opt.partitioning.dnn_format import DnnProblem, read_dnn_partitioning
from phaze_opt.partitioning.integer_program import _SplitModel, least_latency, split_any
from phaze_opt.partitioning.latency import CPU, greedy, latency_of, longest_path
from phaze_opt.partitioning.unit_graph import build_unit_graph
from tests.partitioning.test_dag import brute_force, graphs

DATA = Path(__file__).parent.parent / "data" / "placement" / "dnn-partitioning"


@settings(max_examples=20, deadline=None)
@given(graphs(most=5))
def test_any_split_equals_brute_force(problem: DnnProblem) -> None:
    """On small graphs the program proves the least largest load of all splits."""
    best = brute_force(problem, contiguous=False)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            split_any(problem)
        return
    split = split_any(problem)
    assert split.value == pytest.approx(best, rel=1e-6)
    assert split.status == "optimal"


def test_any_split_is_never_worse_than_contiguous() -> None:
    """A small effort still gives at least the best contiguous split, with a true bound."""
    name = "throughput-layers-bert24_training.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    contiguous = split_contiguous(build_unit_graph(problem)).value
    split = split_any(problem, deterministic_s=0.2)
    assert split.bound <= split.value <= contiguous


def test_a_bound_alone_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the solver calls an assignment optimal that is not, the second search says so."""
    name = "throughput-layers-gnmt_training.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    run = _SplitModel._run

    def lying(model: Any, deterministic_s: float, **parameters: Any) -> tuple[Any, Any]:
        status, solver = run(model, deterministic_s, **parameters)
        value = solver.objective_value
        lie = SimpleNamespace(value=solver.value, objective_value=value, best_objective_bound=value)
        return status, lie

    monkeypatch.setattr(_SplitModel, "_run", lying)
    split = split_any(problem, deterministic_s=0.5)
    assert split.status == "feasible"
    assert split.bound == pytest.approx(share_bound(build_unit_graph(problem, contiguous=False)))


def test_same_answer_twice() -> None:
    """The effort is deterministic: the same file gives the same placement."""
    name = "latency-layers-bert24_inference.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    first, second = (least_latency(problem, deterministic_s=0.2) for _ in range(2))
    assert first.devices == second.devices


@settings(max_examples=20, deadline=None)
@given(graphs(most=5))
def test_latency_is_between_its_bounds(problem: DnnProblem) -> None:
    """The latency is at least the longest path and at most that of every simple placement."""
    graph = build_unit_graph(problem)
    count = len(graph.units)
    options = [greedy(graph), [CPU] * count, [1] * count]
    best = min(latency_of(graph, option) for option in options)
    try:
        split = least_latency(problem)
    except InfeasibleError:
        assert math.isinf(best)
        return
    assert longest_path(graph) * (1 - 1e-9) <= split.value <= best
    assert split.bound <= split.value


def two_units(*sizes_bytes: float) -> DnnProblem:
    """Return a chain of two units that accelerators run faster than the CPU."""
    name = "latency-layers-bert24_inference.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    nodes = tuple(
        msgspec.structs.replace(
            problem.nodes[0],
            id=i,
            colocation=i,
            accelerator_latency=2.0,
            cpu_latency=9.0,
            size_bytes=size_bytes,
        )
        for i, size_bytes in enumerate(sizes_bytes, start=1)
    )
    return replace(problem, nodes=nodes, edges=((0, 1),), output_costs=(0.5,) * len(nodes))


def test_latency_by_hand() -> None:
    """Two units on two accelerators pay the transfer twice: out of one and into the other."""
    small = two_units(1.0, 1.0)
    graph = build_unit_graph(small)
    assert latency_of(graph, [1, 2]) == pytest.approx(5.0)
    assert latency_of(graph, [1, 1]) == pytest.approx(4.0)
    assert latency_of(graph, [1, CPU]) == pytest.approx(2.5 + 9.0)
    assert least_latency(small).value == pytest.approx(4.0)


@pytest.mark.parametrize(("size", "memory"), [(2.0**63, 10.0), (2.0**63, 1e30), (5.0, 1e300)])
def test_sizes_beyond_64_bits(size: float, memory: float) -> None:
    """A layer that no accelerator holds goes to the CPU; where all fit, the sizes do not matter."""
    small = replace(two_units(size, 5.0), memory_bytes=memory)
    expected = 4.0 if size <= memory else 2.5 + 9.0
    assert least_latency(small).value == pytest.approx(expected)


def test_latency_refuses_training_graphs() -> None:
    """Least latency is defined for inference graphs only."""
    name = "throughput-layers-bert24_training.json"
    problem = read_dnn_partitioning((DATA / name).read_bytes(), name)
    with pytest.raises(InputError, match="backward"):
        least_latency(problem)

"""Laws of fusion, on random graphs and on captured ones."""

from itertools import pairwise
from typing import get_args

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import FusionMode
from phaze_opt.precision import Dtype
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import (
    Gemm,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
)
from phaze_opt.workload.zoo import load_workload
from tests.workload.graphs import Moved, graph_of, outliving_bytes
from tests.workload.strategies import operator_graphs

MODES: tuple[FusionMode, ...] = get_args(FusionMode)
modes = st.sampled_from(MODES)


def _traffic(graph: OperatorGraph) -> int:
    return sum(graph.moved_bytes)


def _work(graph: OperatorGraph) -> tuple[list[Gemm], list[tuple[str, int, int]]]:
    """Return all products and all vector work of a graph, in a fixed order."""
    products = sorted((g for op in graph.operators for g in op.gemms), key=repr)
    vector = sorted((w.kind, w.rows, w.columns) for op in graph.operators for w in op.vector)
    return products, vector


def _vector(name: str, kind: str, read: int, write: int, outliving: int = 0) -> Moved:
    work = (VectorWork(kind, 1, write),)
    return Moved(Operator(name, vector=work), read, write, outliving)


def _product(gemm: Gemm, read: int, write: int, outliving: int = 0) -> Moved:
    return Moved(Operator("mm", gemms=(gemm,)), read, write, outliving)


@settings(max_examples=150)
@given(operator_graphs(), modes)
def test_laws_of_every_graph(graph: OperatorGraph, mode: FusionMode) -> None:
    """Work is conserved, traffic never increases, and a fused graph is sound and at rest."""
    fused = fuse(graph, mode)
    assert_work_is_conserved(graph, fused)
    assert_traffic_never_increases(graph, fused)
    assert_fused_graphs_are_acyclic(fused)
    assert fuse(fused, mode) == fused
    if mode == "epilogue":
        assert_edges_bring_no_more_than_is_read(fused)
        products = [[len(op.gemms) for op in each.operators] for each in (graph, fused)]
        assert max(products[1]) == max(products[0])  # never two products in one operator


def assert_work_is_conserved(graph: OperatorGraph, fused: OperatorGraph) -> None:
    """Check that products, vector elements and what leaves the graph stay as they are."""
    assert _work(fused) == _work(graph)
    leaving = [sum(outliving_bytes(each)) for each in (graph, fused)]
    assert leaving[0] == leaving[1]


def assert_traffic_never_increases(graph: OperatorGraph, fused: OperatorGraph) -> None:
    """Check that traffic is only removed, and that what leaves the graph is still written."""
    assert _traffic(fused) <= _traffic(graph)
    for tensor in fused.tensors:
        assert min([one.elements for one in tensor.readers], default=0) >= 0
        assert sum(elements for _, elements in tensor.writers) in (tensor.elements, 0)


def assert_fused_graphs_are_acyclic(fused: OperatorGraph) -> None:
    """Check for a topological order with at most one edge per pair."""
    assert all(0 <= a < b < len(fused.operators) for a, b, _ in fused.edges)
    assert len({(a, b) for a, b, _ in fused.edges}) == len(fused.edges)
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph([(a, b) for a, b, _ in fused.edges]))


def assert_edges_bring_no_more_than_is_read(fused: OperatorGraph) -> None:
    """Check that an operator still reads what its edges bring."""
    for index, read_bytes in enumerate(fused.read_bytes):
        assert read_bytes >= sum(size for _, to, size in fused.edges if to == index)


@given(operator_graphs())
def test_modes_are_ordered(graph: OperatorGraph) -> None:
    """Each mode leaves at most as much traffic and as many operators as the one before."""
    results = [fuse(graph, mode) for mode in MODES]
    for weaker, stronger in pairwise(results):
        assert _traffic(stronger) <= _traffic(weaker)
        assert len(stronger.operators) <= len(weaker.operators)


def test_none_changes_nothing() -> None:
    """Without fusion the very same graph comes back."""
    graph = graph_of([_vector("a", "add", 4, 4)])
    assert fuse(graph, "none") is graph


def test_a_chain_becomes_one_kernel() -> None:
    """Bias, dropout and residual: only the mask and the sum are written, once."""
    chain = graph_of(
        (
            _product(Gemm(2, 3, 4), 40, 12),
            _vector("bias", "add", 18, 12),
            _vector("dropout", "dropout", 12, 18, outliving=6),
            _vector("residual", "add", 24, 12, outliving=12),
        ),
        ((0, 1, 12), (1, 2, 12), (2, 3, 12)),
    )
    elementwise = fuse(chain, "elementwise")
    assert [op.id for op in elementwise.operators] == ["mm", "bias+dropout+residual"]
    assert elementwise.read_bytes[1] == 12 + 6 + 12
    assert elementwise.write_bytes[1] == 6 + 12
    assert elementwise.edges == ((0, 1, 12),)
    whole = fuse(chain, "epilogue")
    assert whole.read_bytes == (40 + 6 + 12,)
    assert whole.write_bytes == (6 + 12,)


def test_a_tensor_with_two_readers_still_travels() -> None:
    """A product whose result two operators read is written as before."""
    graph = graph_of(
        (
            _product(Gemm(2, 3, 4), 40, 12),
            _vector("gelu", "gelu", 12, 12, outliving=12),
            _vector("sum", "reduce", 12, 2, outliving=2),
        ),
        ((0, 1, 12), (0, 2, 12)),
    )
    assert fuse(graph, "epilogue") == graph


def test_a_stashed_result_is_still_written() -> None:
    """A product that is kept for the backward is written, but its reader no longer reads it."""
    graph = graph_of(
        (
            _product(Gemm(2, 3, 4), 40, 12, 12),
            _vector("gelu", "gelu", 12, 12, outliving=12),
        ),
        ((0, 1, 12),),
    )
    fused = fuse(graph, "epilogue")
    assert (fused.read_bytes, fused.write_bytes) == ((40,), (24,))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("model", ["gpt2-xl", "llama2-7b"])
def test_captured_graphs_obey_the_laws(model: str, mode: FusionMode) -> None:
    """Real layers keep their work, lose traffic, and are at rest after one fusion."""
    for layer in load_workload(model).variants[0].layers:
        for graph in (layer.forward, layer.backward, layer.selective_recompute):
            fused = fuse(graph, mode)
            assert _work(fused) == _work(graph)
            assert _traffic(fused) <= _traffic(graph)
            assert fuse(fused, mode) == fused


def test_a_gpt_block_loses_its_elementwise_operators() -> None:
    """With epilogues a GPT block's forward is its products, norms, softmax and one dropout."""
    block = load_workload("gpt2-xl").variants[0].layers[1]
    fused = fuse(block.forward, "epilogue")
    alone = [work.kind for op in fused.operators if not op.gemms for work in op.vector]
    assert sorted(alone) == ["dropout", "layer_norm", "layer_norm", "softmax"]


def test_an_elementwise_operator_joins_the_norm_that_reads_it() -> None:
    """Without a product to join, a compiler runs it inside what reads it by rows."""
    graph = graph_of(
        (_vector("add", "add", 20, 10), _vector("norm", "layer_norm", 10, 10)), ((0, 1, 10),)
    )
    merged = fuse(graph, "epilogue")
    assert [one.id for one in merged.operators] == ["add+norm"]
    assert (merged.read_bytes, merged.write_bytes) == ((20,), (10,))
    assert fuse(graph, "elementwise") == graph


def test_a_product_keeps_its_epilogue_before_a_norm() -> None:
    """An elementwise operator between a product and a norm joins the product."""
    operators = (
        _product(Gemm(4, 4, 4), 64, 10),
        _vector("add", "add", 20, 10),
        _vector("norm", "layer_norm", 10, 10),
    )
    merged = fuse(graph_of(operators, ((0, 1, 10), (1, 2, 10))), "epilogue")
    assert [operator.id for operator in merged.operators] == ["mm+add", "norm"]


def test_what_both_parts_read_is_read_twice_and_stays_an_operand() -> None:
    """A product adds its own operand to its result."""
    shared = Tensor(
        8,
        "uint8",
        writers=((0, 8),),
        readers=(TensorRead(1, 8, first_operand=True), TensorRead(2, 8)),
    )
    graph = graph_of(
        (
            _vector("gelu", "gelu", 8, 8),
            _product(Gemm(2, 2, 2), 16, 8),
            _vector("residual", "add", 16, 8, outliving=8),
        ),
        ((1, 2, 8),),
        (shared,),
    )
    fused = fuse(graph, "epilogue")
    assert [op.id for op in fused.operators] == ["gelu", "mm+residual"]
    assert fused.read_bytes[1] == 24
    assert fused.edges == ((0, 1, 16),)
    (tensor,) = [one for one in fused.tensors if one.is_shared]
    assert tensor.readers == (TensorRead(1, 16, first_operand=True),)


@pytest.mark.parametrize("mode", ["elementwise", "epilogue"])
def test_complex_numbers_are_made_by_a_kernel_of_their_own(mode: FusionMode) -> None:
    """What comes before and after is merged as ever, but not with them."""
    names = ("cast", "scale", "turn", "narrow", "double", "norm")
    work = [Operator(name, vector=(VectorWork("multiply", 1, 8),)) for name in names[:-1]]
    norm = Operator("norm", vector=(VectorWork("softmax", 1, 8),))
    dtypes: tuple[Dtype, ...] = ("fp32", "fp32", "complex64", "bf16", "bf16")
    between = tuple(
        Tensor(8, dtype, writers=((place, 8),), readers=(TensorRead(place + 1, 8),))
        for place, dtype in enumerate(dtypes)
    )
    fused = fuse(OperatorGraph((*work, norm), between), mode)
    whole = ["narrow+double+norm"] if mode == "epilogue" else ["narrow+double", "norm"]
    assert [operator.id for operator in fused.operators] == ["cast+scale", "turn", *whole]
    assert fuse(fused, mode) == fused

"""Which operators can be cut into tiles, and what a tile does."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import pytest

from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.cut_operators import (
    LEAST_ROWS,
    MOST_TILES,
    CutGraph,
    cut_graph,
    handing_by_tiles,
)
from phaze_opt.estimator.least_traffic import most_kept_accesses_bytes, most_kept_bytes
from phaze_opt.estimator.tile_operators import tile_operators
from phaze_opt.estimator.working_sets import kept_tensors
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.passes.tiles import tile_graph
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import (
    Gemm,
    Operator,
    OperatorGraph,
    Tensor,
    TensorKind,
    TensorRead,
    VectorWork,
)
from phaze_opt.workload.zoo import load_workload

MODELS = ("bert-large", "gpt2-xl", "llama2-7b")


@functools.cache
def graphs(model: str, attention: Literal["eager", "flash"]) -> tuple[OperatorGraph, ...]:
    """Return the fused passes of all layers of a model, at microbatch 4."""
    loaded = load_workload(model, microbatch=(4,), attention=attention)
    layers = loaded.variants[0].layers
    passes = [graph for layer in layers for graph in (layer.forward, layer.backward)]
    return tuple(fuse(graph, "epilogue") for graph in passes)


def rows_of(cut: CutGraph) -> list[tuple[int, int]]:
    """List operators with every number of tiles."""
    return [(index, tiles) for index, counts in enumerate(cut.counts) for tiles in counts]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_tiles_do_the_work_of_the_whole(model: str, attention: Literal["eager", "flash"]) -> None:
    """Products and vector work add up; all is written, and read at least as often as once."""
    for graph in graphs(model, attention):
        rows = rows_of(cut_graph(graph))
        tiles = tile_operators(graph, rows)
        assert len(tiles.graph.operators) == len(tiles.accesses) == len(rows)
        for place, (index, count) in enumerate(rows):
            whole, one = graph.operators[index], tiles.graph.operators[place]
            assert one.flops * count == whole.flops
            assert [work.elements * count for work in one.vector] == [
                work.elements for work in whole.vector
            ]
            assert tiles.graph.write_bytes[place] * count >= graph.write_bytes[index]
            assert tiles.graph.read_bytes[place] * count >= graph.read_bytes[index]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_what_is_handed_on_fits_together(model: str, attention: Literal["eager", "flash"]) -> None:
    """Joined operators have the same numbers of tiles, and move each byte between them once."""
    for graph in graphs(model, attention):
        cut = cut_graph(graph)
        rows = rows_of(cut)
        tiles = tile_operators(graph, rows)
        assert all(1 < count <= MOST_TILES for _, count in rows)
        for writer, reader in cut.through:
            assert cut.counts[writer] == cut.counts[reader] or reader in cut.sums
        for kept in kept_tensors(graph):
            handing = handing_by_tiles(graph, kept)
            for place, (index, count) in enumerate(rows):
                if index not in handing:
                    continue
                touched = [
                    number
                    for number, each in enumerate(kept_tensors(graph))
                    if index in {one.operator for one in each.readers}
                    or (each.writer is not None and each.writer.operator == index)
                ]
                own = tiles.accesses[place][touched.index(kept_tensors(graph).index(kept))]
                assert own.bytes * count == kept.size_bytes


def test_attention_is_cut_along_heads_and_queries_and_weight_gradients_along_tokens() -> None:
    """The scores of a block, forward and backward; every tile adds to all of such a gradient."""
    _, _, forward, backward, *_ = graphs("bert-large", "eager")
    for graph, products in ((forward, 2), (backward, 3)):
        cut = cut_graph(graph)
        batched = [
            index
            for index, operator in enumerate(graph.operators)
            if operator.gemms and operator.gemms[0].batch > 1 and cut.counts[index]
        ]
        assert len(batched) >= products
        assert all(16 * 4 in cut.counts[index] for index in batched)
    for graph in (forward, backward):
        cut = cut_graph(graph)
        for tensor in graph.tensors:
            if tensor.kind == "weight_gradient":
                products_of = [i for i, _ in tensor.writers if graph.operators[i].gemms]
                assert cut.sums.issuperset(index for index in products_of if cut.counts[index])


def chain(second: Operator, read: TensorRead, kind: TensorKind = "activation") -> OperatorGraph:
    """Hand the scores of 4 heads of 128 queries and 256 keys to another operator."""
    first = Operator("scores", gemms=(Gemm(128, 256, 64, batch=4),))
    gemm = second.gemms[0] if second.gemms else Gemm(1, 1, 1)
    written = second.vector[0].elements if second.vector else gemm.batch * gemm.m * gemm.n
    tensors = (
        Tensor(4 * 128 * 64, kind=kind, readers=(TensorRead(0, 4 * 128 * 64, True),)),
        Tensor(4 * 256 * 64, kind=kind, readers=(TensorRead(0, 4 * 256 * 64, False, True),)),
        Tensor(4 * 128 * 256, kind=kind, writers=((0, 4 * 128 * 256),), readers=(read,)),
        Tensor(written, kind=kind, writers=((1, written),)),
    )
    return OperatorGraph((first, second), tensors)


WHOLE = TensorRead(1, 4 * 128 * 256)


@pytest.mark.parametrize(
    ("second", "read", "kind", "counts"),
    [
        # Along heads, and in a forward along queries while a tile has 64 rows.
        (VectorWork("softmax", 512, 256), WHOLE, "activation", (4,)),
        (VectorWork("softmax", 512, 256), WHOLE, "gradient", (4,)),
        # Along keys, sums over rows, other rows, or a part of it: never.
        (VectorWork("softmax", 1024, 128), WHOLE, "activation", ()),
        (VectorWork("reduce", 512, 256), WHOLE, "activation", ()),
        (VectorWork("scatter", 512, 256), WHOLE, "activation", ()),
        (VectorWork("add", 512, 256), TensorRead(1, 512), "activation", ()),
    ],
)
def test_what_vector_work_takes_by_tiles(
    second: VectorWork, read: TensorRead, kind: TensorKind, counts: tuple[int, ...]
) -> None:
    """Where each tile needs one tile."""
    cut = cut_graph(chain(Operator("vector", vector=(second,)), read, kind))
    assert cut.counts == (counts, counts)
    assert bool(cut.through) == bool(counts)


@pytest.mark.parametrize("edge", [64, 1024])
def test_a_gradient_of_a_weight_is_summed_over_tiles(edge: int) -> None:
    """In fp32, read and written for every tile unless it is held; a large one is not cut."""
    size, small = 1024 * edge, edge * edge
    graph = OperatorGraph(
        (
            Operator("gelu", vector=(VectorWork("gelu_backward", 1024, edge),)),
            Operator("product", gemms=(Gemm(edge, edge, 1024),)),
        ),
        (
            Tensor(size, kind="gradient", readers=(TensorRead(0, size),)),
            Tensor(
                size,
                kind="gradient",
                writers=((0, size),),
                readers=(TensorRead(1, size, False, True),),
            ),
            Tensor(size, kind="activation", readers=(TensorRead(1, size, True, False),)),
            Tensor(small, kind="weight_gradient", writers=((1, small),), outlives=True),
        ),
    )
    cut = cut_graph(graph)
    if edge == 1024:
        assert cut.counts == ((), ()) and not cut.sums
        return
    assert cut.counts == ((8, 64), (8,)) and cut.through == {(0, 1)} and cut.sums == {1}
    assert cut.held == ((1, 3),)
    (held,) = tile_graph(graph).held
    assert held == (1, 4 * small, 2 * small)
    tiles = tile_operators(graph, [(1, 8)])
    assert tiles.graph.operators[0].gemms == (Gemm(edge, edge, 128),)
    assert tiles.graph.write_bytes == (4 * small,)
    assert tiles.graph.read_bytes == (2 * 2 * size // 8 + 4 * small,)
    assert [own.bytes for own in tiles.accesses[0]] == [2 * size / 8, 8 * small]


def test_a_second_operand_is_taken_by_whole_matrices() -> None:
    """Scores times values: by heads, whichever operand the scores are."""
    for gemm, read in (
        (Gemm(128, 64, 256, batch=4), TensorRead(1, 4 * 128 * 256, True, False)),
        (Gemm(64, 256, 128, batch=4), TensorRead(1, 4 * 128 * 256, False, True)),
    ):
        cut = cut_graph(chain(Operator("product", gemms=(gemm,)), read, "gradient"))
        assert cut.through == {(0, 1)} and cut.counts == ((4,), (4,))


def test_queries_are_cut_in_a_forward_only() -> None:
    """Keys and values are then read again for every tile of a head."""
    scores = Operator("scores", gemms=(Gemm(1024, 1024, 64, batch=2),))
    softmax = Operator("softmax", vector=(VectorWork("softmax", 2048, 1024),))
    size, own = 2 * 1024 * 1024, 2 * 1024 * 64
    cases: tuple[tuple[TensorKind, tuple[int, ...]], ...] = (
        ("activation", (2, 8, 32)),
        ("gradient", (2,)),
    )
    for kind, counts in cases:
        graph = OperatorGraph(
            (scores, softmax),
            (
                Tensor(own, kind=kind, readers=(TensorRead(0, own, True),)),
                Tensor(own, kind=kind, readers=(TensorRead(0, own, False, True),)),
                Tensor(
                    size,
                    kind=kind,
                    writers=((0, size),),
                    readers=(TensorRead(1, size),),
                ),
                Tensor(size, kind=kind, writers=((1, size),)),
            ),
        )
        cut = cut_graph(graph)
        assert cut.counts == (counts, counts)
        assert all(2 * 1024 // tiles >= LEAST_ROWS for tiles in counts)
        tiles = tile_operators(graph, [(0, count) for count in counts])
        for place, count in enumerate(counts):
            again = max(1, count // 2)
            moved = tiles.graph.read_bytes[place] * count
            assert moved == 2 * (own + again * own)


@pytest.mark.parametrize("model", MODELS)
def test_with_tiles_no_less_may_be_kept(model: str) -> None:
    """Bounds with tiles hold for plans without: what operators may save is never less."""
    chips = Chips([load_accelerator("tpuv4-lanes", glb_mib=size) for size in (1, 4, 32, 128)])
    for graph in graphs(model, "eager"):
        for kept in (most_kept_bytes, most_kept_accesses_bytes):
            whole, tiled = kept(graph, chips), kept(graph, chips, tiles=True)
            assert (tiled >= whole).all()
        assert np.isfinite(tiled).all()

"""Linear layers in fewer bits: what is cast, read, written and kept."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze_opt.passes.graphs import graphs_of
from phaze_opt.precision import GRADIENT_PRECISIONS, PRECISIONS, AttentionPrecision, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.casts import is_cast
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Layer, OperatorGraph
from phaze_opt.workload.recipes import (
    attention_stash_change_bytes,
    narrow_attention,
    quantised,
    stash_change_bytes,
)
from phaze_opt.workload.zoo import load_workload

NARROW = [name for name in get_args(PrecisionName) if name != "bf16"]
TOKENS, HIDDEN, INNER = 256, 512, 1024
DENSE = (
    f"llama:layers=2,hidden={HIDDEN},heads=8,kv_heads=4,ffn={INNER},sequence={TOKENS},vocab=2048,"
    "attention=flash"
)
MOE = (
    "moe:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,experts=8,top_k=2,expert_ffn=384,"
    "attention=flash"
)


def layers(model: str, tensor: int = 1) -> dict[str, Layer]:
    """Return the distinct layers of a model by name."""
    workload = load_workload(model, tensor_parallel=(tensor,), microbatch=(1,))
    return {layer.name: layer for layer in workload.variants[0].layers}


def precisions(graph: OperatorGraph) -> dict[str, set[str]]:
    """Return the precisions of the products of every operator."""
    return {op.id: {gemm.precision for gemm in op.gemms} for op in graph.operators if op.gemms}


@pytest.mark.parametrize("name", NARROW)
def test_linear_layers_run_in_the_recipe_and_nothing_else_does(name: PrecisionName) -> None:
    """All products of a block but attention's; none of the layers with the loss or embeddings."""
    for layer in layers(DENSE).values():
        for graph in graphs_of(layer, Training(8, precision=name)).values():
            gradients = {
                graph.operators[writer].id
                for tensor in graph.tensors
                if tensor.kind == "weight_gradient"
                for writer, _ in tensor.writers
            }
            for operator, found in precisions(graph).items():
                plain = layer.name != "block" or "attention" in operator
                own = GRADIENT_PRECISIONS.get(name, name) if operator in gradients else name
                assert found == ({"bf16"} if plain else {own}), (layer.name, operator)


@pytest.mark.parametrize("name", NARROW)
def test_weight_gradients_alone_have_scales_of_their_own_form(name: PrecisionName) -> None:
    """Of the seven linear layers of a block, each has one; in other recipes nothing has."""
    graphs = graphs_of(layers(DENSE)["block"], Training(8, precision=name))
    found = [
        gemm.precision
        for graph in (graphs["forward"], graphs["backward"])
        for operator in graph.operators
        for gemm in operator.gemms
        if not operator.attention
    ]
    own = GRADIENT_PRECISIONS.get(name, name)
    assert found.count(own) == (7 if own != name else 21)
    assert found.count(name) == (14 if own != name else 21)


def test_routers_stay_in_sixteen_bits_and_experts_do_not() -> None:
    """Grouped products are cast; the product of the router and its gradients are not."""
    for graph in graphs_of(layers(MOE)["block"], Training(8, precision="fp8")).values():
        for operator in graph.operators:
            for gemm in operator.gemms:
                routes = 8 in (gemm.m, gemm.n, gemm.k)
                grouped = operator.id.startswith("grouped")
                if routes and not grouped:
                    assert gemm.precision == "bf16"
                if grouped:
                    assert gemm.precision == "fp8"


def test_sixteen_bits_change_nothing() -> None:
    """The graphs of bf16 are those that were captured."""
    layer = layers(DENSE)["block"]
    assert quantised(layer.forward, "bf16", stashed=False) is layer.forward
    assert stash_change_bytes(layer, "bf16", "none") == 0


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("mode", ["none", "elementwise", "epilogue"])
def test_work_and_order_are_kept(name: PrecisionName, mode: str) -> None:
    """FLOPs are those of bf16, writers stand before readers, casts are all that comes beside."""
    layer = layers(DENSE)["block"]
    for before, stashed in ((layer.forward, False), (layer.backward, True)):
        graph = quantised(before, name, stashed=stashed)
        assert graph.flops == before.flops
        added = [operator for operator in graph.operators if is_cast(operator)]
        searches = sum(operator.id.startswith("largest") for operator in graph.operators)
        assert searches == (len(added) if name in ("fp8", "int8") else 0)
        assert len(graph.operators) == len(before.operators) + len(added) + searches
        assert added
        fused = fuse(graph, mode)  # type: ignore[arg-type]
        assert fused.flops == before.flops
        for tensor in fused.tensors:
            for writer, _ in tensor.writers:
                assert all(writer < read.operator for read in tensor.readers)


def test_products_read_no_more_in_a_narrower_recipe() -> None:
    """Every product by itself moves at most the bytes of the wider one."""
    layer = layers(DENSE)["block"]
    for graph, stashed in ((layer.forward, False), (layer.backward, True)):
        moved = []
        for name in ("bf16", "mxfp8", "nvfp4"):
            changed = quantised(graph, name, stashed=stashed)
            sizes = zip(changed.operators, changed.moved_bytes, strict=True)
            moved.append([size for operator, size in sizes if operator.gemms])
        for wide, eight, four in zip(*moved, strict=True):
            assert wide >= eight >= four


def test_what_a_block_keeps() -> None:
    """Worked by hand: narrow inputs of products, and the result of attention twice (3 bytes)."""
    layer = layers(DENSE)["block"]
    # Inputs of query, key and value, of both of the gate, and of the last product: 2 bytes to 1.
    # The result of attention stays in 16 bits for its backward: 2 bytes to 3.
    narrower = TOKENS * (HIDDEN + HIDDEN + INNER)
    twice = TOKENS * HIDDEN
    assert stash_change_bytes(layer, "fp8", "none") == twice - narrower
    assert stash_change_bytes(layer, "fp8", "full") == 0


def test_norms_take_casts_in_where_epilogues_fuse() -> None:
    """A cast behind a norm or an activation is no kernel of its own; behind attention it is."""
    graph = quantised(layers(DENSE)["block"].forward, "mxfp8", stashed=False)
    fused = fuse(graph, "epilogue")
    alone = [operator.id for operator in fused.operators if is_cast(operator)]
    assert len(alone) == 1
    attention = next(i for i, op in enumerate(fused.operators) if op.attention is not None)
    assert is_cast(fused.operators[attention + 1])


@pytest.mark.parametrize("name", NARROW)
def test_shards_add_up(name: PrecisionName) -> None:
    """The products of two devices are those of one, in every precision."""
    totals = []
    for tensor in (1, 2):
        block = layers(DENSE, tensor)["block"]
        by_precision: dict[str, int] = {}
        for graph in graphs_of(block, Training(8, precision=name)).values():
            for operator in graph.operators:
                for gemm in operator.gemms:
                    by_precision[gemm.precision] = (
                        by_precision.get(gemm.precision, 0) + tensor * gemm.flops
                    )
        totals.append(by_precision)
    assert totals[0] == totals[1]


def test_copies_of_weights_are_held_and_made() -> None:
    """Two narrow copies stand beside the weights, and are cast once per batch."""
    plain = Training(8, optimizer="adam")
    held: tuple[tuple[PrecisionName, float], ...] = (
        ("fp8", 2),
        ("mxfp8", 2.0625),
        ("nvfp4", 1.125),
    )
    for name, copies in held:
        changed = replace(plain, precision=name)
        assert changed.state.held_bytes[0] == plain.state.held_bytes[0] + copies
        assert changed.cast_bytes == 2 + copies
        assert changed.step_bytes == plain.step_bytes
    assert PRECISIONS["nvfp4"].operand_bytes == 0.5625


@pytest.mark.parametrize("precision", ["fp8", "mxfp8"])
def test_attention_reads_casts_and_keeps_them(precision: AttentionPrecision) -> None:
    """Queries, keys and values are kept once, in a byte and their scales, and the result in two."""
    attending = [
        layer
        for layer in layers(DENSE).values()
        if any(operator.attention is not None for operator in layer.forward.operators)
    ]
    assert attending
    for layer in attending:
        plain = {"forward": layer.forward, "backward": layer.backward}
        narrow = {
            name: narrow_attention(graph, precision, stashed=name == "backward")
            for name, graph in plain.items()
        }
        for name, graph in plain.items():
            assert narrow_attention(graph, "bf16", stashed=name == "backward") == graph
            cores = [each for each in narrow[name].operators if each.attention is not None]
            assert {gemm.precision for each in cores for gemm in each.gemms} == {precision}
            assert narrow[name].flops == graph.flops
        kept = {
            name: sum(t.elements * t.element_bytes for t in graphs["forward"].tensors if t.outlives)
            for name, graphs in (("plain", plain), ("narrow", narrow))
        }
        shrunk = kept["narrow"] - kept["plain"]
        assert shrunk == attention_stash_change_bytes(layer, precision, "none") < 0
        # What the backward takes from outside is what the forward kept.
        taken = sum(
            tensor.elements * tensor.element_bytes
            for tensor in narrow["backward"].tensors
            if not tensor.writers and tensor.kind == "activation"
        )
        before = sum(
            tensor.elements * tensor.element_bytes
            for tensor in plain["backward"].tensors
            if not tensor.writers and tensor.kind == "activation"
        )
        assert taken - before == shrunk
        casts = [each for each in narrow["forward"].operators if is_cast(each)]
        assert len(casts) == 3
        names = [each.id for each in quantised(narrow["forward"], "fp8", stashed=False).operators]
        assert len(names) == len(set(names))


GATHERING: tuple[PrecisionName, ...] = ("fp8", "fp8-block", "mxfp8", "nvfp4")


def shared_layers(model: str, tensor: int = 2) -> dict[str, Layer]:
    """Return the distinct layers of a model whose tensor-parallel groups share the sequence."""
    workload = load_workload(
        model, tensor_parallel=(tensor,), microbatch=(1,), sequence_parallel=True
    )
    (variant,) = workload.variants
    return {layer.name: layer for layer in variant.layers}


def sent_bytes(graph: OperatorGraph, kind: str) -> list[int]:
    """Return the whole sizes of the collectives of a kind."""
    sent = (operator.collective for operator in graph.operators)
    return [each.size_bytes for each in sent if each is not None and each.kind == kind]


@pytest.mark.parametrize(
    ("name", "element_bytes", "copies"),
    [
        ("fp8", 1.0, 1),
        ("fp8-block", 1 + 4 / 128, 2),
        ("mxfp8", 1 + 1 / 32, 2),
        ("nvfp4", 9 / 16, 2),
    ],
)
def test_gathers_move_narrow_operands(
    name: PrecisionName, element_bytes: float, copies: int
) -> None:
    """Worked by hand for a block: every gather moves tokens × hidden elements with their scales.

    Two in the forward. In the backward the gradients of both row-parallel outputs, in as many
    copies as there are, and the inputs of both column-parallel layers in one.
    """
    block = shared_layers(DENSE)["block"]
    size = TOKENS * HIDDEN * element_bytes
    graphs = graphs_of(block, Training(8, precision=name, sequence_parallel=True))
    assert sent_bytes(graphs["forward"], "all_gather") == [size] * 2
    assert sent_bytes(graphs["backward"], "all_gather") == [size] * (2 * copies + 2)
    for direction in ("forward", "backward"):
        plain = getattr(block, direction)
        sums = sent_bytes(graphs[direction], "reduce_scatter")
        assert sums == sent_bytes(plain, "reduce_scatter")
        agreed = sent_bytes(graphs[direction], "all_reduce")
        assert agreed == ([4, 4] if name == "fp8" else [])
        # Nothing is lost: every product reads both of its operands in the recipe.
        for index, operator in enumerate(graphs[direction].operators):
            if operator.attention is None and operator.gemms:
                own = [
                    tensor.dtype
                    for tensor in graphs[direction].tensors
                    for read in tensor.readers
                    if read.operator == index and (read.first_operand or read.second_operand)
                ]
                assert own == ["uint8"] * 2


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("model", [DENSE, MOE])
def test_narrower_gathers_never_move_more(name: PrecisionName, model: str) -> None:
    """But for gradients whose copies by rows and by columns have other scales, which take two."""
    for layer in shared_layers(model).values():
        for direction, graph in graphs_of(layer, Training(8, precision=name)).items():
            plain = sent_bytes(getattr(layer, direction), "all_gather")
            narrow = sent_bytes(graph, "all_gather")
            assert max(narrow, default=0) <= max(plain, default=0)
            if len(narrow) == len(plain):
                assert all(less <= more for less, more in zip(narrow, plain, strict=True))
            assert sum(narrow) <= max(1.0, PRECISIONS[name].operand_bytes) * sum(plain)
            if name not in GATHERING:
                assert narrow == plain


def test_gathers_with_other_readers_stay_in_sixteen_bits() -> None:
    """Tokens that are sorted by experts after the gather, and embeddings, are gathered in bf16."""
    block = shared_layers(MOE)["block"]
    graphs = graphs_of(block, Training(8, precision="mxfp8"))
    whole = 512 * 512 * 2
    # Of the forward's two large gathers, that of attention's input is narrow.
    assert sorted(sent_bytes(graphs["forward"], "all_gather"))[-2:] == [whole * 33 // 64, whole]
    embedding = shared_layers(MOE)["embedding"]
    assert quantised(embedding.backward, "mxfp8", stashed=True) == embedding.backward


@pytest.mark.parametrize("name", GATHERING)
def test_narrow_shards_are_kept(name: PrecisionName) -> None:
    """What the backward takes from outside is what the forward kept, and what the stash counts."""

    def kept_bytes(graph: OperatorGraph, *, taken: bool) -> int:
        return sum(
            tensor.elements * tensor.element_bytes
            for tensor in graph.tensors
            if tensor.kind == "activation"
            and (not tensor.writers if taken else bool(tensor.writers) and tensor.outlives)
        )

    block = shared_layers(DENSE)["block"]
    graphs = graphs_of(block, Training(8, precision=name))
    taken = kept_bytes(graphs["backward"], taken=True) - kept_bytes(block.backward, taken=True)
    kept = kept_bytes(graphs["forward"], taken=False) - kept_bytes(block.forward, taken=False)
    assert taken == kept == stash_change_bytes(block, name, "none")
    # Norms run again: what is kept beside them is the result of attention, once more.
    again = PRECISIONS[name].stored(TOKENS * HIDDEN // 2)[0]
    assert stash_change_bytes(block, name, "selective") == again
    for graph in graphs.values():
        for tensor in graph.tensors:
            for writer, _ in tensor.writers:
                assert all(writer < read.operator for read in tensor.readers)


@pytest.mark.parametrize("name", GATHERING)
def test_without_shared_sequences_nothing_is_gathered(name: PrecisionName) -> None:
    """Groups that reduce their outputs cast whole inputs, as before, and agree on nothing."""
    for layer in layers(DENSE, 2).values():
        for graph in graphs_of(layer, Training(8, precision=name)).values():
            assert not any(operator.id.startswith("gathered") for operator in graph.operators)
            assert not sent_bytes(graph, "all_gather")
            assert all(size > 4 for size in sent_bytes(graph, "all_reduce"))


def test_norms_take_casts_in_before_gathers() -> None:
    """A cast of a shard is part of the norm that makes it, where epilogues fuse."""
    block = shared_layers(DENSE)["block"]
    fused = fuse(quantised(block.forward, "mxfp8", stashed=False), "epilogue")
    alone = [operator.id for operator in fused.operators if is_cast(operator)]
    assert len(alone) == 1  # of the result of attention

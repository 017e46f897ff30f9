"""Tokens that go to their experts in fp8: what is cast, sent, widened and read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.passes.graphs import graphs_of
from phaze_opt.precision import PRECISIONS, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.casts import is_cast, linear_products, operands_of
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.graph import Layer, OperatorGraph, Tensor
from phaze_opt.workload.zoo import load_workload

TOKENS, HIDDEN, TOP_K = 512, 512, 2
SHAPE = (
    f"layers=1,hidden={HIDDEN},heads=8,sequence={TOKENS},vocab=4096,experts=8,top_k={TOP_K},"
    "expert_ffn=384,attention=flash"
)
ROWS = TOKENS * TOP_K
RECIPES: tuple[PrecisionName, ...] = ("fp8", "fp8-row", "fp8-block", "mxfp8")
TRAINING = Training(
    64, expert_parallel=4, dispatcher="deepep", precision="fp8-block", dispatch_precision="fp8"
)


def block(training: Training, model: str = f"moe:{SHAPE}") -> Layer:
    """Return the block as its devices have it."""
    (variant,) = load_workload(model).variants
    shared = with_experts_shared_out(variant, training).layers
    return next(layer for layer in shared if layer.routed_parameters)


def passes(training: Training) -> dict[str, OperatorGraph]:
    """Return the passes of the block in its precisions."""
    return graphs_of(block(training), training)


def cast_elements(graph: OperatorGraph) -> list[int]:
    """Return how many elements every cast reads, sorted."""
    return sorted(each.vector[0].elements for each in graph.operators if is_cast(each))


def moved_bytes(graph: OperatorGraph) -> int:
    """Return what all operators but exchanges read and write."""
    sent = {index for index, each in enumerate(graph.operators) if each.collective}
    return sum(
        tensor.element_bytes
        * (
            sum(count for writer, count in tensor.writers if writer not in sent)
            + sum(read.elements for read in tensor.readers if read.operator not in sent)
        )
        for tensor in graph.tensors
    )


def received(graph: OperatorGraph) -> list[Tensor]:
    """Return what arrives at the experts."""
    sent = {
        index
        for index, each in enumerate(graph.operators)
        if each.collective and each.collective.kind == "dispatch"
    }
    return [t for t in graph.tensors if any(writer in sent for writer, _ in t.writers)]


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_products_by_blocks_multiply_what_arrives(name: str) -> None:
    """Tokens are cast before they are sorted, rows only along the tokens; nothing is widened."""
    narrow, wide = (
        passes(replace(TRAINING, dispatch_precision=own))[name] for own in ("fp8", "bf16")
    )
    (arrived,) = received(narrow)
    size = PRECISIONS["fp8-block"].stored(ROWS * HIDDEN)[0]
    assert (arrived.elements, arrived.dtype) == (size, "uint8")
    products = [op for op in narrow.operators if op.id.startswith("grouped_product")]
    readers = [narrow.operators[read.operator] for read in arrived.readers]
    assert [each in products for each in readers].count(True) == 1
    assert sum(map(is_cast, readers)) == 1
    assert not any(each.id.startswith("widen") for each in narrow.operators)
    assert cast_elements(narrow) == sorted([*cast_elements(wide), TOKENS * HIDDEN])
    assert moved_bytes(narrow) < moved_bytes(wide)
    assert [op.gemms for op in narrow.operators if op.gemms] == [
        op.gemms for op in wide.operators if op.gemms
    ]


@pytest.mark.parametrize("precision", RECIPES)
def test_what_is_kept_does_not_depend_on_what_is_sent(precision: PrecisionName) -> None:
    """In bytes of every tensor that outlives the forward."""
    narrow = replace(TRAINING, precision=precision)
    kept = [
        sorted(t.elements * t.element_bytes for t in passes(own)["forward"].tensors if t.outlives)
        for own in (narrow, replace(narrow, dispatch_precision="bf16"))
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("precision", [name for name in RECIPES if name != "fp8-block"])
def test_other_recipes_widen_and_cast_again(precision: PrecisionName) -> None:
    """Whatever they scale by; what follows is what it is without."""
    training = replace(TRAINING, precision=precision)
    for name in ("forward", "backward"):
        narrow = passes(training)[name]
        wide = passes(replace(training, dispatch_precision="bf16"))[name]
        assert sum(each.id.startswith("widen") for each in narrow.operators) == 1
        assert cast_elements(narrow) == sorted([*cast_elements(wide), TOKENS * HIDDEN])


def test_layers_in_sixteen_bits_widen() -> None:
    """They are sent fp8 too, and multiply bf16."""
    layer = replace(block(TRAINING), in_bf16=True)
    graph = graphs_of(layer, TRAINING)["forward"]
    linear = linear_products(graph)
    assert {graph.operators[i].gemms[0].precision for i in linear} == {"bf16"}
    (widened,) = [
        tensor
        for tensor in graph.tensors
        if any(graph.operators[writer].id.startswith("widen") for writer, _ in tensor.writers)
    ]
    assert widened.dtype == "bf16" and operands_of(widened, linear)


def test_sums_of_rows_need_them_wide() -> None:
    """Gradients of the experts' biases add up gradients in 16 bits, beside products that do not."""
    training = replace(TRAINING, dispatcher="nccl", expert_parallel=2)
    layer = block(training, "gpt-oss-20b")
    for name, graph in graphs_of(layer, training).items():
        widened = sum(each.id.startswith("widen") for each in graph.operators)
        assert widened == (name == "backward")
        assert any(each.id.startswith("sort_rows") for each in graph.operators)


def test_nothing_sent_is_nothing_cast() -> None:
    """On one device the option changes nothing."""
    alone = replace(TRAINING, expert_parallel=1)
    assert passes(alone) == passes(replace(alone, dispatch_precision="bf16"))

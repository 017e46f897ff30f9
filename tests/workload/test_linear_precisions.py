"""Linear layers that run in another recipe than the others."""

from __future__ import annotations

from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.passes.bare_layers import layer_memory
from phaze_opt.passes.graphs import graphs_of
from phaze_opt.training import Training
from phaze_opt.training_options import LINEAR_LAYERS
from phaze_opt.workload.casts import linear_products, weights_of
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant
from phaze_opt.workload.linear_precisions import check_linear_precisions, linear_names
from phaze_opt.workload.zoo import load_workload

SUPER = "nemotron-3-super-120b-a12b"
RECIPE = "linear_qkv=bf16,linear_proj=bf16,latent_proj=bf16,out_proj=mxfp8"
DENSE = "llama:layers=2,hidden=512,heads=8,kv_heads=4,ffn=1024,sequence=256,vocab=2048"
LARGE = "llama:layers=1,hidden=4096,heads=32,ffn=12288,sequence=4096,vocab=2048"
MOE = (
    "moe:layers=2,hidden=512,heads=8,sequence=256,vocab=2048,experts=8,top_k=2,expert_ffn=384,"
    "shared=1,kv_rank=64,q_rank=96,nope_dim=64,rope_dim=32,v_dim=64"
)


def _variant(model: str, **options: Any) -> WorkloadVariant:
    return load_workload(model, **options).variants[0]


def _layers(model: str, **options: Any) -> dict[str, Layer]:
    return {layer.name: layer for layer in _variant(model, **options).layers}


def _precisions(layer: Layer, graph: OperatorGraph, changed: OperatorGraph) -> dict[str, set[str]]:
    """Return in what the products of every linear layer multiply, by its name."""
    names, sizes = linear_names(layer), weights_of(graph)
    own = {each.id: each.gemms for each in changed.operators}
    found: dict[str, set[str]] = {}
    for index in linear_products(graph):
        (name,) = names[sizes[index]]
        (gemm,) = own[graph.operators[index].id]
        found.setdefault(name, set()).add(gemm.precision)
    return found


def test_every_product_has_one_name() -> None:
    """Forward and backward know the same weights; all names are some model's."""
    seen: set[str] = set()
    models = (SUPER, "qwen3-next-80b-a3b", DENSE, MOE, "gpt3-175b", f"{SUPER}+mtp2")
    for layer in (layer for model in models for layer in _variant(model).layers):
        names = linear_names(layer)
        for graph in (layer.forward, layer.backward):
            sizes = {weights_of(graph)[index] for index in linear_products(graph)}
            assert sizes == names.keys() or layer.name == "head"
        seen |= {name for own in names.values() for name in own}
    assert seen == set(LINEAR_LAYERS)


@pytest.mark.parametrize("model", [SUPER, "deepseek-v3", "mixtral-8x7b"])
def test_a_split_layer_has_the_same_names(model: str) -> None:
    """Products of whole weights beside split ones are none of the experts'."""

    def names(**options: Any) -> dict[str, set[str]]:
        return {
            name: {name for own in linear_names(layer).values() for name in own}
            for name, layer in _layers(model, **options).items()
        }

    whole = names()
    assert "experts" in whole["expert_block" if model == SUPER else "block"]
    for own in (False, True):
        assert names(tensor_parallel=(2,), sequence_parallel=own) == whole


def test_the_recipe_of_nemotron_3_super() -> None:
    """Experts and inputs of mixers in four bits, outputs of these in eight, attention in 16."""
    training = Training(8, precision="nvfp4", linear_precisions=RECIPE)
    found: dict[str, set[str]] = {}
    for name, layer in _layers(SUPER).items():
        changed = graphs_of(layer, training)
        for each in ("forward", "backward") if name != "head" else ():
            graph = getattr(layer, each)
            if "expert" in name:  # both of a shared expert have one size, and one recipe
                continue
            for linear, own in _precisions(layer, graph, changed[each]).items():
                found.setdefault(linear, set()).update(own)
    assert found == {
        "in_proj": {"nvfp4"},
        "out_proj": {"mxfp8"},
        "linear_qkv": {"bf16"},
        "linear_proj": {"bf16"},
    }
    block = _layers(SUPER)["expert_block"]
    for graph in graphs_of(block, training).values():
        wide = {
            frozenset((gemm.m, gemm.n, gemm.k))
            for each in graph.operators
            for gemm in each.gemms
            if gemm.precision == "bf16"
        }
        assert wide == {frozenset((8192, 4096, 512)), frozenset((8192, 4096, 1024))}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("model", [DENSE, MOE])
def test_work_and_order_are_kept(model: str, split: bool) -> None:
    """FLOPs are those of bf16, and writers stand before readers, before and after fusion."""
    shared: dict[str, Any] = {"tensor_parallel": (2,), "sequence_parallel": True} if split else {}
    block = _layers(model, **shared)["block"]
    training = Training(
        8, precision="mxfp8", linear_precisions="linear_fc1=nvfp4,linear_fc2=nvfp4",
        sequence_parallel=split,
    )  # fmt: skip
    for name, graph in graphs_of(block, training).items():
        assert graph.flops == getattr(block, name).flops
        assert len({each.id for each in graph.operators}) == len(graph.operators)
        for own in (graph, fuse(graph, "elementwise"), fuse(graph, "epilogue")):
            for tensor in own.tensors:
                for writer, _ in tensor.writers:
                    assert all(writer < read.operator for read in tensor.readers)


def _kept(layer: Layer, **options: Any) -> int:
    return layer_memory(layer, Training(8, **options), "elementwise").kept_bytes


def test_what_a_block_keeps() -> None:
    """Worked by hand: inputs of the feed-forward network stay in 16 bits, those before do not."""
    block = _layers(DENSE)["block"]
    tokens, hidden, inner = 256, 512, 1024
    names = "linear_fc1=bf16,linear_fc2=bf16"
    wide, narrow = _kept(block), _kept(block, precision="fp8")
    mixed = _kept(block, precision="fp8", linear_precisions=names)
    assert mixed - narrow == tokens * (hidden + inner)
    # The input of attention is halved, and its result is kept in both precisions.
    assert mixed == wide


def test_the_same_recipe_for_all_changes_nothing() -> None:
    """Stated one by one, or for all: passes and memory are the same."""
    names = linear_names(_layers(DENSE)["block"])
    every = ",".join(f"{name}=fp8" for name in sorted(frozenset().union(*names.values())))
    for layer in _variant(DENSE).layers:
        plain = Training(8, precision="fp8")
        stated = Training(8, precision="fp8", linear_precisions=every)
        assert graphs_of(layer, stated) == graphs_of(layer, plain)
        assert _kept(layer, precision="fp8", linear_precisions=every) == _kept(
            layer, precision="fp8"
        )


def test_a_point_lies_between_both_recipes() -> None:
    """With a part in bf16 a batch takes longer than in the recipe, and less than in bf16."""

    def seconds(**options: Any) -> float:
        training = Training(4, recompute="selective", **options)
        found = evaluate(LARGE, "b200", "dgx-b200", training, (1, 1, 1), devices=1)
        assert found.time_per_batch_s is not None
        return found.time_per_batch_s

    part = seconds(precision="nvfp4", linear_precisions="linear_fc1=bf16,linear_fc2=bf16")
    assert seconds(precision="nvfp4") < part < seconds()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"linear_precisions": "experts=bf16"}, "but precision is bf16"),
        ({"precision": "fp8", "linear_precisions": "fc1=bf16"}, "Unknown linear layer"),
        ({"precision": "fp8", "linear_precisions": "experts=fp6"}, "Unknown precision of experts"),
        (
            {"precision": "fp8", "linear_precisions": "experts=fp8-block-gradient"},
            "Unknown precision of experts",
        ),
        ({"precision": "fp8", "linear_precisions": "experts"}, "Unknown precision of experts"),
        (
            {
                **{"precision": "fp8", "linear_precisions": "experts=bf16"},
                "offload_parts": "core_attn",
            },
            "known in one precision only",
        ),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], words: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(InputError, match=words):
        Training(8, **options)


def test_what_a_model_has_not_is_refused() -> None:
    """Its names are said; linear layers of one size are not told apart."""
    lacks = Training(8, precision="fp8", linear_precisions="experts=bf16")
    with pytest.raises(InputError, match="names experts, but the model has only linear_fc1, "):
        check_linear_precisions([_variant(DENSE)], lacks)
    alike = Training(8, precision="fp8", linear_precisions="linear_proj=bf16")
    with pytest.raises(InputError, match="linear_proj and linear_qkv have as many elements"):
        check_linear_precisions([_variant("llama3-8b")], alike)
    chip = Training(8, precision="fp8", linear_precisions="linear_fc1=nvfp4,linear_fc2=nvfp4")
    with pytest.raises(InputError, match="nvfp4"):
        evaluate(DENSE, "h100", "dgx-h100", chip, (1, 1, 1), devices=1)

"""Parts of a layer that selective recompute runs again: what they need, give and take."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.training_options import RECOMPUTE_PARTS
from phaze_opt.workload.graph import Layer, OperatorGraph, WorkloadVariant
from phaze_opt.workload.recompute_parts import parts_by_layer, with_parts_run_again
from phaze_opt.workload.zoo import load_workload

EAGER = "gpt:layers=2,hidden=256,heads=8,sequence=256,vocab=1024"
LLAMA = "llama:layers=2,hidden=256,heads=8,kv_heads=2,ffn=512,sequence=256,vocab=1024"
LATENT = (
    "moe:layers=2,hidden=256,heads=8,sequence=256,vocab=1024,experts=8,top_k=2,expert_ffn=128,"
    "shared=1,ffn=512,dense_layers=1,q_rank=96,kv_rank=64,nope_dim=32,rope_dim=16,v_dim=32"
)
SHORT = (
    "moe:layers=2,hidden=256,heads=8,sequence=256,vocab=1024,experts=8,top_k=2,expert_ffn=128,"
    "dense_layers=1,ffn=512"
)
MODELS = (EAGER, LLAMA, LATENT)
BYTES = 2


def captured(model: str, tensor: int = 1, split_tokens: bool = True) -> WorkloadVariant:
    """Load a model, where it is split under sequence parallelism unless that is refused."""
    is_split = tensor > 1 and split_tokens
    loaded = load_workload(model, tensor_parallel=(tensor,), sequence_parallel=is_split)
    return loaded.variants[0]


def again(variant: WorkloadVariant, *parts: str) -> WorkloadVariant:
    """Let selective recompute run parts again."""
    training = Training(8, recompute="selective", recompute_parts=",".join(parts))
    return with_parts_run_again([variant], training)[0]


def parts_of(variant: WorkloadVariant) -> tuple[str, ...]:
    """Return the parts that any layer has, in their order."""
    found = {part for parts in parts_by_layer(variant).values() for part in parts}
    return tuple(part for part in RECOMPUTE_PARTS if part in found)


def block(variant: WorkloadVariant) -> Layer:
    """Return the last layer that attends."""
    return variant.layers[-2]


def kept(layer: Layer) -> int:
    """Return what a layer keeps under selective recompute."""
    return layer.stash_bytes.selective


def names(graph: OperatorGraph) -> list[str]:
    """Name the operators that run again, without their numbers."""
    return [operator.id.rstrip("_0123456789") for operator in graph.operators]


def test_which_parts_a_model_has() -> None:
    """In the order of the names, of all layers together."""
    assert parts_of(captured(EAGER)) == ("core_attn", "layernorm", "mlp")
    assert parts_of(captured(LATENT)) == RECOMPUTE_PARTS


@pytest.mark.parametrize("split_tokens", [False, True])
@pytest.mark.parametrize("model", [*MODELS, SHORT])
def test_a_split_layer_has_the_same_parts(model: str, split_tokens: bool) -> None:
    """Communication aside; products that all devices of a group repeat are of no expert."""
    whole, split = captured(model), captured(model, 2, split_tokens)
    assert parts_by_layer(split) == parts_by_layer(whole)
    for part in parts_of(whole):
        before, after = (
            {layer.name: _computing(layer.selective_recompute) for layer in again(own, part).layers}
            for own in (whole, split)
        )
        assert before == after


def _computing(graph: OperatorGraph) -> int:
    """Count the operators that are no communication."""
    return sum(not operator.collective for operator in graph.operators)


def test_no_part_is_the_captured_one() -> None:
    """To the object; and a part without selective recompute is refused, as one that is not."""
    variant = captured(LLAMA)
    assert with_parts_run_again([variant], Training(8, recompute="selective"))[0] is variant
    with pytest.raises(InputError, match="with recompute_parts mlp it must be selective"):
        Training(8, recompute_parts="mlp")
    with pytest.raises(InputError, match="Unknown part in recompute_parts: 'mpl'"):
        Training(8, recompute="selective", recompute_parts="layernorm,mpl")
    with pytest.raises(InputError, match="moe, which no layer of the model has; they have core"):
        again(variant, "moe")


def test_core_attention_is_what_korthikanti_runs_again() -> None:
    """Through scores in memory, selective recompute is this part: stash, operators and tensors."""
    variant = captured(EAGER)
    plain, part = block(variant), block(again(variant, "core_attn"))
    assert kept(part) == kept(plain)
    assert part.selective_recompute.operators == plain.selective_recompute.operators
    assert part.selective_recompute.moved_bytes == plain.selective_recompute.moved_bytes


def test_stashes_by_hand() -> None:
    """Of a Llama block with gated feed-forward: what parts need and give."""
    plain = block(captured(LLAMA))
    tokens, hidden, inner = 256, 256, 512
    saved = plain.stash_bytes.none
    # Both norms' results; row statistics too.
    assert saved - kept(block(again(captured(LLAMA), "layernorm"))) == 2 * tokens * (
        hidden * BYTES + 4
    )
    # Both results of the first layer, the activation and the product; the input is kept anyway.
    assert saved - kept(block(again(captured(LLAMA), "mlp"))) == 4 * tokens * inner * BYTES
    # Fused attention gives row statistics only, and keeps its inputs and its result.
    assert saved - kept(block(again(captured(LLAMA), "core_attn"))) == tokens * 8 * 4
    assert names(block(again(captured(LLAMA), "mlp")).selective_recompute) == [
        "mm", "mm", "silu", "mul", "mm",
    ]  # fmt: skip


def test_experts_and_latent_attention_by_hand() -> None:
    """Activations of experts, up projections, router, routed and shared experts."""
    variant = captured(LATENT)
    layer = block(variant)
    saved, rows, tokens = layer.stash_bytes.none, 512, 256
    assert saved - kept(block(again(variant, "moe_act"))) == rows * 128 * BYTES
    shared = block(again(variant, "shared_experts"))
    assert saved - kept(shared) == 4 * tokens * 128 * BYTES
    up = block(again(variant, "mla_up_proj"))
    # Queries and keys of 48 elements and values of 32, of 8 heads.
    assert saved - kept(up) == tokens * 8 * (48 + 48 + 32) * BYTES
    assert names(up.selective_recompute) == ["mm", "rotary", "mm", "latent_keys_and_values"]
    moe = block(again(variant, "moe"))
    assert {"route", "permute_rows", "combine_rows"} <= set(names(moe.selective_recompute))
    assert kept(moe) < min(kept(shared), kept(block(again(variant, "moe_act"))))
    # The dense layer has no experts: all of its backward finds what it kept.
    dense = again(variant, "moe").layers[1]
    assert kept(dense) == dense.stash_bytes.none
    assert dense.selective_recompute.operators == ()
    assert dense.transient_bytes.selective == dense.transient_bytes.none


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2]), st.data())
def test_more_parts_keep_less_and_take_longer(model: str, tensor: int, data: st.DataObject) -> None:
    """Whatever is chosen; nothing keeps more than no recompute, or holds more than a full one."""
    variant = captured(model, tensor)
    there = parts_of(variant)
    few = data.draw(st.sets(st.sampled_from(there), min_size=1))
    more = few | data.draw(st.sets(st.sampled_from(there)))
    for little, much in zip(again(variant, *few).layers, again(variant, *more).layers, strict=True):
        assert kept(much) <= kept(little) <= little.stash_bytes.none
        assert kept(much) >= min(much.stash_bytes.full, much.stash_bytes.none)
        assert little.selective_recompute.flops <= much.selective_recompute.flops
        assert much.selective_recompute.flops <= much.forward.flops
        for sizes in (much.transient_bytes, much.fused_transient_bytes):
            assert sizes.none <= sizes.selective <= max(sizes.full, sizes.none)
        for graph in (little.selective_recompute, much.selective_recompute):
            for tensor_ in graph.tensors:
                last = max((writer for writer, _ in tensor_.writers), default=-1)
                assert all(last < read.operator for read in tensor_.readers)
            # What is given again is what is no longer kept, but for inputs that must be.
            given_again = sum(t.elements * t.element_bytes for t in graph.tensors if t.outlives)
            layer = little if graph is little.selective_recompute else much
            assert layer.stash_bytes.none - kept(layer) <= given_again


def test_a_part_of_one_kind_of_layer() -> None:
    """Leaves the other kinds as they are."""
    variant = captured(LATENT)
    both, one = again(variant, "layernorm"), again(variant, "block.layernorm")
    assert one.layers[2] == both.layers[2] and one.layers[1] != both.layers[1]
    assert kept(one.layers[1]) == one.layers[1].stash_bytes.none
    with pytest.raises(InputError, match=r"names dense_block\.moe, which no layer"):
        again(variant, "dense_block.moe")


def test_parts_do_not_depend_on_their_order() -> None:
    """Nor on spaces between them."""
    variant = captured(LATENT)
    for first, second in combinations(parts_of(variant), 2):
        assert again(variant, first, second) == again(variant, f" {second}", first)

"""Activations by name: policies of frameworks, and what of a layer can wait on the host."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.activation_names import OFFLOAD_PARTS, RECOMPUTE_POLICIES
from phaze_opt.errors import InputError
from phaze_opt.precision import PRECISIONS, RECIPES, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.graph import Layer
from phaze_opt.workload.recipes import stash_change_bytes
from phaze_opt.workload.recompute_parts import with_parts_run_again
from tests.workload.test_recompute_parts import BYTES, LATENT, LLAMA, block, captured, kept, names

FUSED = "gpt:layers=2,hidden=256,heads=8,sequence=256,vocab=1024,attention=flash,dropout=0"
MIXTURE = "moe:layers=2,hidden=256,heads=8,sequence=256,vocab=1024,experts=8,top_k=2,expert_ffn=128"
TOKENS, HIDDEN, INNER, KEYS = 256, 256, 512, 64
"""Of the Llama model: its keys are of two heads."""


def under(model: str, policy: str, tensor: int = 1, split_tokens: bool = True) -> Layer:
    """Return the block of a model under a policy."""
    training = Training(8, recompute="selective", recompute_parts=policy)
    own = captured(model, tensor, split_tokens)
    return block(with_parts_run_again([own], training)[0])


def offloaded(model: str, parts: str, tensor: int = 1, **options: Any) -> int:
    """Return what the block of a model offloads."""
    training = Training(8, offload_parts=parts, **options)
    variant = with_parts_run_again([captured(model, tensor)], training)[0]
    return block(variant).offloaded_bytes or 0


@pytest.mark.parametrize(("tensor", "split_tokens"), [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("model", [LLAMA, FUSED, MIXTURE, LATENT])
def test_torch_op_is_what_the_capture_finds(model: str, tensor: int, split_tokens: bool) -> None:
    """Torch's per-operator checkpointing by names: the same bytes and operators."""
    plain = block(captured(model, tensor, split_tokens))
    policy = under(model, "torch-op", tensor, split_tokens)
    assert kept(policy) == kept(plain)
    again = policy.selective_recompute
    assert names(again) == names(plain.selective_recompute)
    assert again.flops == plain.selective_recompute.flops
    assert sum(again.moved_bytes) == sum(plain.selective_recompute.moved_bytes)


def test_minimal_by_hand() -> None:
    """Every product is kept, and what lies between runs again, attention too."""
    layer = under(LLAMA, "minimal")
    products = (2 * HIDDEN + 2 * KEYS) + 2 * INNER  # after attention, queries, keys, values, inner
    # The last product is not needed: what reads it is the next layer's input.
    assert kept(layer) == TOKENS * (HIDDEN + products) * BYTES
    assert names(layer.selective_recompute) == [
        "rms_norm", "flash_attention", "add", "rms_norm", "silu", "mul",
    ]  # fmt: skip
    context = under(LLAMA, "minimal_with_context")
    assert kept(context) - kept(layer) == TOKENS * (HIDDEN * BYTES + 8 * 4)
    assert "flash_attention" not in names(context.selective_recompute)
    without = under(LLAMA, "save_dot_except_mlp")
    assert kept(layer) - kept(without) == TOKENS * 2 * INNER * BYTES
    assert names(without.selective_recompute).count("mm") == 2
    assert kept(under(LLAMA, "save_qkv_proj")) == TOKENS * (2 * HIDDEN + 2 * KEYS) * BYTES
    assert kept(under(LLAMA, "save_out_proj")) == 2 * TOKENS * HIDDEN * BYTES


def test_a_sum_over_the_group_is_kept_in_place_of_its_product() -> None:
    """Under a policy that keeps the product after attention nothing is sent for it again."""
    assert "reduce_scatter" in names(under(LLAMA, "save_qkv_proj", 2).selective_recompute)
    assert "reduce_scatter" not in names(under(LLAMA, "save_dot_except_mlp", 2).selective_recompute)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([LLAMA, FUSED, MIXTURE, LATENT]),
    st.sampled_from([1, 2]),
    st.sampled_from([name for name in RECOMPUTE_POLICIES if name != "torch-op"]),
)
def test_a_policy_keeps_between_everything_and_the_input(
    model: str, tensor: int, policy: str
) -> None:
    """And gives the backward all else again: what runs can be run from what is kept."""
    layer = under(model, policy, tensor)
    assert layer.stash_bytes.full <= kept(layer) <= layer.stash_bytes.none
    again = layer.selective_recompute
    assert again.flops <= layer.forward.flops
    given_again = sum(t.elements * t.element_bytes for t in again.tensors if t.outlives)
    assert layer.stash_bytes.none - kept(layer) <= given_again
    assert (layer.offloaded_bytes or 0) <= kept(layer)


def test_policies_that_name_more_keep_more() -> None:
    """The order of MaxText's documentation, from the most memory to the least."""
    order = (
        "minimal_with_context", "minimal", "save_dot_except_mlpwi",
        "save_dot_except_mlp", "save_qkv_proj",
    )  # fmt: skip
    for model in (LLAMA, FUSED, MIXTURE, LATENT):
        sizes = [kept(under(model, policy)) for policy in order]
        assert sizes == sorted(sizes, reverse=True)
    assert kept(under(LLAMA, "minimal_offloaded")) == kept(under(LLAMA, "minimal"))


def test_inputs_of_modules_by_hand() -> None:
    """What Megatron-Core sends to the host is what a module reads."""
    stream = TOKENS * HIDDEN * BYTES
    for part in ("attn_norm", "qkv_linear", "attn_proj", "mlp_norm"):
        assert offloaded(LLAMA, part) == stream
    assert offloaded(LLAMA, "core_attn") == TOKENS * (HIDDEN + 2 * KEYS) * BYTES
    both = offloaded(LLAMA, "core_attn") + offloaded(LLAMA, "attn_proj")
    assert offloaded(LLAMA, "attn_proj, core_attn") == both
    rows = TOKENS * 2
    assert offloaded(MIXTURE, "expert_fc1") == rows * HIDDEN * BYTES
    assert offloaded(MIXTURE, "moe_act") == rows * 2 * 128 * BYTES
    # In eight bits the rows that products read are kept so; what an activation reads is not.
    narrow = offloaded(MIXTURE, "expert_fc1", precision="fp8")
    assert rows * HIDDEN <= narrow < rows * HIDDEN * BYTES
    assert offloaded(MIXTURE, "moe_act", precision="fp8") == rows * 2 * 128 * BYTES
    queries = TOKENS * (HIDDEN + 2 * KEYS)
    assert queries <= offloaded(LLAMA, "core_attn", attention_precision="fp8") < queries * BYTES


@pytest.mark.parametrize("precision", [name for name in RECIPES if name != "bf16"])
def test_a_share_is_offloaded_in_the_bits_in_which_it_is_kept(precision: PrecisionName) -> None:
    """In 16 where the recipe gathers 16 bits (`phaze_opt.workload.narrow_gathers`), else narrow."""
    narrow = PRECISIONS[precision].stored
    # The last product keeps a narrow input; that of the product after attention is kept twice.
    others = narrow(TOKENS * INNER // 2)[0] - TOKENS * INNER // 2 * BYTES
    others += narrow(TOKENS * HIDDEN // 2)[0]
    change = stash_change_bytes(block(captured(LLAMA, 2)), precision, "none") - others
    # The inputs of both first products are as large, and kept in the same way.
    wide = offloaded(LLAMA, "qkv_linear", 2)
    assert 2 * (offloaded(LLAMA, "qkv_linear", 2, precision=precision) - wide) == change


def test_only_what_is_kept_is_offloaded() -> None:
    """Not what runs again; under full recompute the layer's input alone is kept."""
    again: dict[str, Any] = {"recompute": "selective", "recompute_parts": "layernorm"}
    assert offloaded(LLAMA, "qkv_linear,attn_proj", **again) == offloaded(LLAMA, "attn_proj")
    assert offloaded(LLAMA, "attn_norm,attn_proj", recompute="full") == TOKENS * HIDDEN * BYTES
    with pytest.raises(InputError, match="Nothing of attention_result is kept"):
        offloaded(LLAMA, "attn_proj", recompute="full")
    with pytest.raises(InputError, match="Nothing of expert_rows is kept"):
        offloaded(LLAMA, "expert_fc1")


def test_names_are_refused_in_a_sentence() -> None:
    """Policies beside parts, unknown parts, and recompute that names nothing."""
    selective = {"recompute": "selective"}
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({**selective, "recompute_parts": "minimal,mlp"}, "the policy minimal must stand alone"),
        ({"offload_parts": "attn"}, "Unknown part in offload_parts: 'attn'"),
        ({"offload_parts": "layer,core_attn"}, "layer must stand alone"),
        ({"offload_parts": "core_attn", **selective}, "does not say by name what is kept"),
        ({"offload_parts": "layer", "offload_share": 0.0}, "offload_share is 0.0"),
        ({"offload_optimizer": 1.5}, "offload_optimizer is 1.5"),
        ({"offload_optimizer": 0.5}, "the optimizer sgd has no state"),
    )
    for options, words in refused:
        with pytest.raises(InputError, match=words):
            Training(8, **options)
    assert all(Training(8, offload_parts=part).offloads for part in OFFLOAD_PARTS)

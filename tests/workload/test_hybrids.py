"""Laws of state-space mixers, delta nets and hybrids: families in small, shapes of any size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.huggingface import read_huggingface_config
from phaze_opt.workload.huggingface_hybrids import HYBRID_FAMILIES
from phaze_opt.workload.recurrences import (
    SCAN_KERNELS,
    DeltaNet,
    DeltaShape,
    ScanShape,
    StateSpace,
    is_scan_kernel,
)
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_blocks, captured_whole

KNOWN_PARAMETERS = {
    # All, and those that work on a token. As released, without extra prediction layers and the
    # correction bias of routers, which has no gradient.
    "nemotron-h-8b": (8_100_852_736, 8_100_852_736),
    "nemotron-3-nano-30b-a3b": (31_577_937_344, 3_580_073_408),
    "nemotron-3-super-120b-a12b": (120_668_687_360, 12_770_216_960),
    "nemotron-3-ultra-550b-a55b": (549_308_968_960, 56_058_818_560),
    "qwen3-next-80b-a3b": (79_674_391_296, 3_874_929_408),
}
KNOWN_CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    # mistralai/Mamba-Codestral-7B-v0.1: the defaults of the class.
    "mamba2": (7_285_403_648, {}),
    # tiiuae/Falcon-H1-0.5B-Base.
    "falcon_h1": (
        521_411_104,
        {
            **{"hidden_size": 1024, "num_hidden_layers": 36, "num_attention_heads": 8},
            **{"num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 2048},
            **{"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128},
            "vocab_size": 32784,
        },
    ),
}
_TEXT: dict[str, Any] = {
    **{"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4},
    **{"vocab_size": 96, "max_position_embeddings": 32, "intermediate_size": 128},
    **{"num_hidden_layers": 4},
}
_SCAN = {
    **{"mamba_n_heads": 8, "mamba_n_groups": 4, "mamba_d_state": 16},
    "mamba_chunk_size": 8,
}
_NET = {
    **{"linear_num_value_heads": 8, "linear_num_key_heads": 4},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 8, "head_dim": 16},
}
SMALL: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        **{**_TEXT, "hybrid_override_pattern": "ME*-", "head_dim": 16, "n_routed_experts": 8},
        **{"mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 4, "ssm_state_size": 16},
        **{"chunk_size": 8, "moe_intermediate_size": 32, "moe_latent_size": 48},
        "moe_shared_expert_intermediate_size": 64,
    },
    "mamba2": {
        **{"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 4},
        **{"chunk_size": 8, "num_hidden_layers": 3, "vocab_size": 96},
        "max_position_embeddings": 32,
    },
    "bamba": {**_TEXT, **_SCAN, "attn_layer_indices": [2]},
    "falcon_h1": {**_TEXT, **_SCAN, "head_dim": 16, "mamba_d_ssm": 96, "mamba_n_heads": 8},
    "granitemoehybrid": {
        **{**_TEXT, **_SCAN, "layer_types": ["mamba", "attention", "mamba", "mamba"]},
        **{"num_local_experts": 8, "shared_intermediate_size": 48},
    },
    "qwen3_next": {
        **{**_TEXT, **_NET, "num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [1]},
        **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    },
    "qwen3_5_text": {**_TEXT, **_NET},
    "qwen3_5_moe_text": {
        **{**_TEXT, **_NET, "num_experts": 8, "num_experts_per_tok": 2},
        **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    },
}
families = pytest.mark.parametrize("family", HYBRID_FAMILIES)


def _read(tmp_path: Path, family: str, keys: dict[str, Any]) -> TransformerConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **keys}))
    return read_huggingface_config(path)


@pytest.fixture
def config(family: str, tmp_path: Path) -> TransformerConfig:
    """Return the small configuration of a family."""
    return _read(tmp_path, family, SMALL[family])


def _blocks(variant: WorkloadVariant) -> dict[str, Layer]:
    return {layer.name: layer for layer in variant.layers if "block" in layer.name}


def _chunked_scan(shape: ScanShape) -> None:
    """Run the scan of Mamba-2 in chunks, as its paper lists it (Dao and Gu 2024, listing 1)."""
    chunks, length = shape.chunks, shape.chunk
    x = torch.empty(chunks, shape.heads, length, shape.width)
    keys, queries = (torch.empty(chunks, shape.groups, length, shape.state) for _ in range(2))
    decay = torch.empty(chunks, shape.heads, length)
    scores = queries @ keys.transpose(-1, -2)
    many = shape.heads // shape.groups
    mask = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).exp().tril()
    within = (scores.repeat_interleave(many, 1) * mask) @ x
    added = (x * decay.unsqueeze(-1)).transpose(-1, -2) @ keys.repeat_interleave(many, 1)
    states = added.cumsum(0)
    across = queries.repeat_interleave(many, 1) @ states.transpose(-1, -2)
    assert (within + across * decay.unsqueeze(-1).exp()).shape == x.shape


def _chunked_delta_rule(shape: DeltaShape) -> None:
    """Run the gated delta rule in chunks (Yang et al. 2024, section 3.3), the inverse aside."""
    rows, length = (shape.sequences, shape.chunks), shape.chunk
    queries, keys = (torch.empty(*rows, length, shape.key) for _ in range(2))
    values = torch.empty(*rows, length, shape.value)
    inverse = torch.empty_like(keys @ keys.transpose(-1, -2))
    left, written = inverse @ keys, inverse @ values
    state = torch.empty(shape.sequences, shape.key, shape.value)
    for chunk in range(shape.chunks):
        new = written[:, chunk] - left[:, chunk] @ state
        scores = queries[:, chunk] @ keys[:, chunk].transpose(-1, -2)
        result = queries[:, chunk] @ state + scores @ new
        state = state + keys[:, chunk].transpose(-1, -2) @ new
    assert result.shape == values[:, 0].shape


def _counted(run: Any, shape: Any) -> int:
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        run(shape)
    return int(counter.get_total_flops())


_sizes = st.sampled_from([1, 2, 4])
scans = st.builds(
    lambda batch, chunks, groups, many, width, state, chunk: ScanShape(
        batch, chunks * chunk, groups * many, groups, width, state, chunk
    ),
    *(_sizes, st.integers(1, 5), _sizes, _sizes),
    *(st.integers(1, 40), st.integers(1, 40), st.sampled_from([4, 16, 64])),
)
deltas = st.builds(
    lambda batch, chunks, heads, key, value, chunk: DeltaShape(
        batch, chunks * chunk, heads, key, value, chunk
    ),
    *(_sizes, st.integers(1, 5), _sizes),
    *(st.integers(1, 40), st.integers(1, 40), st.sampled_from([8, 16, 32, 64])),
)
SCAN = ["chunk_states", "chunk_scores", "chunk_scan"]
SCAN_BACKWARD = [
    *("chunk_states_gradient", "chunk_inputs_gradient", "chunk_keys_gradient"),
    *("chunk_queries_gradient", "chunk_scores_gradient", "scores_gradient", "scores_gradient"),
    "chunk_decay_gradient",
]
DELTA = ["delta_scores", "invert_triangles", "delta_pairs", "delta_states", "delta_output"]
DELTA_BACKWARD = [
    *("delta_values_gradient", "delta_states_gradient", "delta_operands_gradient"),
    "delta_pairs_gradient",
]


def test_the_kernels_of_a_scan_are_known_by_name() -> None:
    """All that multiply or hand states on, tiles of them too, and nothing else of a mixer."""
    kernels = {*SCAN, *SCAN_BACKWARD, "pass_states", "pass_states_backward"}
    assert kernels == SCAN_KERNELS
    assert all(callable(getattr(ScanShape, kernel)) for kernel in kernels)
    for kernel in kernels:
        assert all(map(is_scan_kernel, (kernel, f"{kernel}_3", f"{kernel} 12", f"{kernel}+add")))
    others = "chunk_scan_decay", "step_sizes", "short_convolution", "mm_1", "flash_attention"
    assert not any(map(is_scan_kernel, others))


def _model_flops(shape: Any, kernels: list[str]) -> int:
    works = [getattr(shape, kernel)() for kernel in kernels]
    return sum(int(gemm.flops) for work in works for gemm in work.gemms) - sum(
        int(work.surplus_flops) for work in works
    )


@settings(deadline=None, max_examples=30)
@given(scans)
def test_a_scan_has_the_flops_of_its_plain_form(shape: ScanShape) -> None:
    """PyTorch counts as many in a plain scan; a backward has two products for each."""
    forward = _model_flops(shape, SCAN)
    assert forward == _counted(_chunked_scan, shape)
    assert _model_flops(shape, SCAN_BACKWARD) == 2 * forward


@settings(deadline=None, max_examples=30)
@given(deltas)
def test_a_delta_rule_has_the_flops_of_its_plain_form(shape: DeltaShape) -> None:
    """PyTorch counts as many in a plain rule; a backward has two products for each."""
    forward = _model_flops(shape, DELTA)
    assert forward == _counted(_chunked_delta_rule, shape)
    assert _model_flops(shape, DELTA_BACKWARD) == 2 * forward


def _linear_weights(config: TransformerConfig, sublayer: str) -> int:
    """Return the weights of the products of a sub-layer that work on a token."""
    hidden, experts, space, delta = (
        config.hidden,
        config.experts,
        config.state_space,
        config.delta_net,
    )
    if sublayer == "H":
        return _linear_weights(config, "*") + _linear_weights(config, "M")
    if sublayer == "*":
        inner = config.heads * config.head_size
        kv = config.key_value_heads * config.head_size
        return hidden * ((3 if config.output_gate else 2) * inner + 2 * kv)
    if sublayer == "M":
        assert space
        columns = 2 * space.inner + 2 * space.groups * space.state + space.heads
        return hidden * (columns + space.inner)
    if sublayer == "D":
        assert delta
        keys, values = (
            delta.key_heads * delta.key_elements,
            delta.heads * delta.head_elements,
        )
        return hidden * (2 * keys + 2 * values + 2 * delta.heads + values)
    matrices = 3 if config.activation == "swiglu" else 2
    if sublayer == "-":
        return matrices * hidden * config.inner
    assert experts
    width = experts.latent or hidden
    routed = experts.top_k * matrices * width * experts.feed_forward
    through = 2 * hidden * experts.latent if experts.latent else 0
    shared = matrices * hidden * experts.shared + (hidden if experts.shared_gate else 0)
    return hidden * experts.count + routed + through + shared


def _core_flops(config: TransformerConfig, sublayer: str) -> int:
    """Return the FLOPs of a sub-layer, for two samples, that have no weights."""
    tokens, space, delta = config.sequence, config.state_space, config.delta_net
    flops = 0
    if sublayer in "*H":
        flops += 2 * 2 * tokens * tokens * config.heads * config.head_size * 2
    if sublayer in "MH":
        assert space
        sizes = (space.heads, space.groups, space.head_elements, space.state)
        flops += _model_flops(ScanShape(2, tokens, *sizes, min(space.chunk, tokens)), SCAN)
    if sublayer == "D":
        assert delta
        widths = (delta.heads, delta.key_elements, delta.head_elements)
        flops += _model_flops(DeltaShape(2, tokens, *widths, min(64, tokens)), DELTA)
    return flops


@families
def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """Every sub-layer of a block counts; a backward has twice as many but for attention."""
    blocks = _blocks(captured_whole(config))
    for sublayers, (_, kind) in zip(config.blocks, captured_whole(config).nodes[1:-1], strict=True):
        block = blocks[captured_whole(config).layers[kind].name]
        expected = sum(
            4 * config.sequence * _linear_weights(config, each) + _core_flops(config, each)
            for each in sublayers
        )
        assert block.forward.flops == expected, sublayers
        attends = not {"*", "H"}.isdisjoint(sublayers)
        assert attends or block.backward.flops == 2 * expected, sublayers


@families
def test_parameters_are_those_of_the_layers(config: TransformerConfig) -> None:
    """The total is that of all layers; the chosen share of the routed experts is active."""
    variant = captured_whole(config)
    pairs = list(zip(variant.counts, variant.layers, strict=True))
    tied = max(layer.tied_parameters for layer in variant.layers)
    own = sum(count * (layer.parameters - layer.tied_parameters) for count, layer in pairs)
    assert own + tied == count_parameters(config)
    routed = sum(count * (layer.routed_parameters or 0) for count, layer in pairs)
    active = count_parameters(config, active=True)
    share = 1 - config.experts.top_k / config.experts.count if config.experts else 0.0
    assert active == pytest.approx(own + tied - share * routed, abs=0.5)


def _replicated(config: TransformerConfig, sublayers: str) -> int:
    """Return the parameters of a block that every device holds."""
    held = config.hidden * len(sublayers)
    heads = 2 * config.head_size if config.query_key_norm and "*" in sublayers else 0
    delta = config.delta_net.head_elements if config.delta_net and "D" in sublayers else 0
    experts = config.experts
    if experts and "E" in sublayers:
        held += config.hidden * experts.count + (config.hidden if experts.shared_gate else 0)
        held += 2 * config.hidden * experts.latent if experts.latent else 0
    return held + heads + delta


@families
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(config: TransformerConfig, split: bool) -> None:
    """Shards hold all parameters, replicated ones once each, and share products and scans out."""
    degree = 4
    whole, shards = captured_whole(config), captured_blocks(config, degree, split=split)
    for sublayers, (_, kind) in zip(config.blocks, whole.nodes[1:-1], strict=True):
        one = whole.layers[kind]
        many = shards[one.name]
        held = _replicated(config, sublayers)
        assert degree * many.parameters == one.parameters + (degree - 1) * held, sublayers
        assert degree * many.forward.flops == one.forward.flops, sublayers
        assert degree * many.backward.flops == one.backward.flops, sublayers
        sent = [each.collective for each in many.forward.operators if each.collective]
        assert len(sent) >= len(sublayers)


def test_a_mixer_sends_only_around_its_products(tmp_path: Path) -> None:
    """A state-space mixer has one all-reduce forward and one backward, or gathers and scatters."""
    config = _read(tmp_path, "mamba2", SMALL["mamba2"])
    block = captured_blocks(config, 2)["state_space_block"]
    for graph in (block.forward, block.backward):
        kinds = [each.collective.kind for each in graph.operators if each.collective]
        assert kinds == ["all_reduce"]
    block = captured_blocks(config, 2, split=True)["state_space_block"]
    kinds = [each.collective.kind for each in block.forward.operators if each.collective]
    assert kinds == ["all_gather", "reduce_scatter"]


def test_the_stash_of_a_mixer() -> None:
    """It keeps its input with its row's scale, what is projected, and both results of its core."""
    space = StateSpace(8, 16, 16, groups=4, chunk=8)
    sizes: dict[str, Any] = {
        **{"layers": 1, "hidden": 64, "heads": 8, "sequence": 32, "vocabulary": 96}
    }
    fixed = {**LLAMA, "positions": "none"}
    config = TransformerConfig(**sizes, **fixed, pattern="M", state_space=space)
    block = captured_blocks(config)["state_space_block"]
    columns = 2 * space.inner + 2 * space.groups * space.state + space.heads
    # In bf16: the input, the normed input, what is projected, the scan, and the gated norm of it.
    elements = 2 * config.hidden + columns + 2 * space.inner
    # In fp32: a scale of each norm.
    assert block.stash_bytes.none == 2 * 32 * (2 * elements + 2 * 4)
    assert block.stash_bytes.full == 2 * 32 * 2 * config.hidden
    assert block.stash_bytes.selective == block.stash_bytes.none


@pytest.mark.parametrize("model", KNOWN_PARAMETERS)
def test_parameters_of_named_models(model: str) -> None:
    """They are those of the releases."""
    config = model_config(model)
    counted = count_parameters(config), count_parameters(config, active=True)
    assert counted == KNOWN_PARAMETERS[model]


def test_prediction_layers_of_hybrids() -> None:
    """Attention and experts, as released: all of Qwen3-Next's weights are those of its files."""
    assert count_parameters(model_config("qwen3-next-80b-a3b+mtp")) == 81_324_862_720
    plain, one, two = (
        count_parameters(model_config(f"nemotron-3-super-120b-a12b{end}"))
        for end in ("", "+mtp", "+mtp2")
    )
    hidden, experts = 4096, 512 * 2 * 1024 * 2688 + 2 * 4096 * (1024 + 5376) + 512 * 4096
    attention = 2 * hidden * (32 + 2) * 128
    # Beside them two norms of the block, three of the layer, and the product that joins.
    assert one - plain == two - one == experts + attention + 2 * hidden**2 + 5 * hidden


def test_prediction_layers_are_counted_after_the_pattern(tmp_path: Path) -> None:
    """The head projects once more for each, and a block of its own stands before it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "nemotron_h", **SMALL["nemotron_h"]}))
    (plain,) = load_workload(str(path)).variants
    (ahead,) = load_workload(f"{path}+mtp2").variants
    assert len(ahead.nodes) == len(plain.nodes) + 2
    assert ahead.layers[-1].forward.flops == 3 * plain.layers[-1].forward.flops
    with pytest.raises(InputError, match="mtp0"):
        model_config("nemotron-h-8b+mtp0")


@pytest.mark.parametrize("family", KNOWN_CONFIGS)
def test_parameters_of_configurations(family: str, tmp_path: Path) -> None:
    """They are those of the releases."""
    expected, keys = KNOWN_CONFIGS[family]
    assert count_parameters(_read(tmp_path, family, keys)) == expected


def test_a_named_model_is_its_configuration(tmp_path: Path) -> None:
    """Nemotron 3 Nano by name has the shape that its configuration states."""
    keys = {
        **{"hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2},
        **{"head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128},
        **{"n_groups": 8, "chunk_size": 128, "intermediate_size": 1856, "vocab_size": 131072},
        **{"moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712},
        **{"n_routed_experts": 128, "num_experts_per_tok": 6, "max_position_embeddings": 8192},
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    }
    read, named = _read(tmp_path, "nemotron_h", keys), model_config("nemotron-3-nano-30b-a3b")
    # Biases are stated apart, and here both are left out.
    assert (read.query_key_value_bias, read.projection_bias, read.bias) == (False, False, False)
    assert count_parameters(read) == count_parameters(named)
    assert (read.pattern, read.state_space, read.experts) == (
        named.pattern,
        named.state_space,
        named.experts,
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pattern": "M *"}, "3 blocks"),
        ({"pattern": "M X *"}, "apart by spaces"),
        ({"pattern": "M D *"}, "sizes of the delta net"),
        ({"pattern": "M E *"}, "sizes of the experts"),
        ({"pattern": "M - *", "windows": (8, 8, 8)}, "windows"),
        ({"state_space": StateSpace(8, 8, 8)}, "need a pattern"),
        ({"output_gate": True}, "rotary"),
    ],
)
def test_a_pattern_that_contradicts_the_model_is_refused(
    changed: dict[str, Any], words: str
) -> None:
    """One sentence says what is wrong."""
    sizes = {"layers": 3, "hidden": 64, "heads": 8, "sequence": 32, "vocabulary": 96}
    fixed: dict[str, Any] = {**LLAMA, "positions": "none", "state_space": StateSpace(8, 8, 8)}
    if "pattern" not in changed:
        fixed.pop("state_space")
    with pytest.raises(InputError, match=words):
        TransformerConfig(**{**sizes, **fixed, **changed})


def test_groups_that_do_not_divide_the_heads_are_refused() -> None:
    """A group has as many heads as every other one, and so has a head of the keys."""
    with pytest.raises(InputError, match="groups is 3"):
        StateSpace(8, 8, 8, groups=3)
    with pytest.raises(InputError, match="key_heads is 4"):
        DeltaNet(6, 8, 4, 8)


def test_sequences_of_a_hybrid_are_not_shared_out(tmp_path: Path) -> None:
    """A scan needs all tokens of a sequence; heads and groups limit the tensor degree."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba2", **SMALL["mamba2"]}))
    with pytest.raises(InputError, match="all tokens of a sequence on one device"):
        load_workload(str(path), context_parallel=(2,))
    with pytest.raises(InputError, match=r"heads and groups \(8, 4\).*divisors 1, 2, 4"):
        load_workload(str(path), tensor_parallel=(8,))

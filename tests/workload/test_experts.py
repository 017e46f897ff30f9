"""Laws of mixtures of experts: every family in small, and shapes of any size."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.experts import (
    TILE_ROWS,
    Experts,
    LatentAttention,
    grouped_product,
    rows_of_expert,
    surplus_flops,
)
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Gemm, Layer, OperatorGraph
from phaze_opt.workload.huggingface import read_huggingface_config
from phaze_opt.workload.huggingface_deepseek import DEEPSEEK_FAMILIES
from phaze_opt.workload.huggingface_experts import EXPERT_FAMILIES
from phaze_opt.workload.workload_file import read_workload, write_workload
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import blocks_of, captured_blocks, captured_whole

KNOWN_PARAMETERS = {
    # All, and those that work on a token. As released, without extra prediction layers and the
    # correction bias of routers, which has no gradient.
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "kimi-k2": (1_026_408_209_408, 32_861_477_888),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
}
_TEXT: dict[str, Any] = {
    **{"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 128},
    **{"vocab_size": 96, "max_position_embeddings": 32, "num_hidden_layers": 3},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
_GROUPED = {**_TEXT, "num_key_value_heads": 4}
_LATENT = {
    **{"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12},
    **{"q_lora_rank": 40, "n_routed_experts": 8, "first_k_dense_replace": 1},
}
SMALL: dict[str, dict[str, Any]] = {
    "mixtral": {**_GROUPED, "num_local_experts": 4, "sliding_window": 8},
    "qwen2_moe": {**_GROUPED, "num_experts": 8, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**_GROUPED, "num_experts": 8, "head_dim": 16, "mlp_only_layers": [1]},
    "deepseek_v2": {**_TEXT, **_LATENT, "q_lora_rank": None},
    "deepseek_v3": {**_TEXT, **_LATENT},
    "deepseek_v32": {
        **{**_TEXT, **_LATENT},
        **{"index_n_heads": 2, "index_head_dim": 8, "index_topk": 16},
    },
    "glm_moe_dsa": {
        **{**_TEXT, **_LATENT},
        **{"index_n_heads": 2, "index_head_dim": 8, "index_topk": 16, "v_head_dim": 24},
    },
    "ernie4_5_moe": {**_GROUPED, "moe_num_experts": 8, "moe_k": 2, "moe_layer_interval": 2},
    "minimax_m2": {**_GROUPED, "num_local_experts": 8, "head_dim": 16, "rotary_dim": 8},
    "kimi_k2": {**_TEXT, **_LATENT, "moe_layer_freq": 2},
    "gpt_oss": {**_GROUPED, "num_local_experts": 8, "head_dim": 16, "sliding_window": 8},
    "glm4_moe": {**_GROUPED, "n_routed_experts": 8, "head_dim": 16, "use_qk_norm": True},
    "dots1": {**_GROUPED, "n_routed_experts": 8, "head_dim": 16, "n_shared_experts": 2},
    "bailing_moe": {
        **{**_GROUPED, "num_experts": 8, "num_shared_experts": 1, "head_dim": 16},
        **{"n_group": 4, "topk_group": 2},
    },
    "glm4_moe_lite": {**_TEXT, **_LATENT},
    "llama4_text": {
        **_GROUPED,
        **{"num_local_experts": 8, "head_dim": 16, "intermediate_size_mlp": 96},
        **{"interleave_moe_layer_step": 2, "num_experts_per_tok": 1, "attention_chunk_size": 8},
    },
    "olmoe": {**_GROUPED, "num_experts": 8},
    "granitemoe": {**_GROUPED, "num_local_experts": 8, "tie_word_embeddings": True},
    "phimoe": {
        **{**_GROUPED, "num_local_experts": 8},
        **{"attention_bias": True, "lm_head_bias": True},
    },
    "dbrx": {
        **{"d_model": 64, "n_heads": 8, "n_layers": 3, "max_seq_len": 32, "vocab_size": 96},
        "attn_config": {"kv_n_heads": 4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "hunyuan_v1_moe": {
        **{**_GROUPED, "head_dim": 16, "num_shared_expert": [1, 1, 1], "intermediate_size": 32},
        **{"num_experts": [8, 8, 8], "moe_topk": [2, 2, 2]},
    },
}
families = pytest.mark.parametrize("family", SMALL)


def test_every_family_has_a_small_model() -> None:
    """Ling's second name is the first's family; DeepSeek-V4 is in `test_compressed_attention`."""
    others = {"bailing_moe_v2", "deepseek_v4"}
    assert SMALL.keys() | others == EXPERT_FAMILIES.keys() | DEEPSEEK_FAMILIES.keys()
    assert EXPERT_FAMILIES["bailing_moe_v2"] is EXPERT_FAMILIES["bailing_moe"]


@pytest.fixture
def config(family: str, tmp_path: Path) -> TransformerConfig:
    """Return the small configuration of a family."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **SMALL[family]}))
    return read_huggingface_config(path)


def _block(config: TransformerConfig, tensor_degree: int = 1) -> Layer:
    return captured_blocks(config, tensor_degree)["block"]


def _graphs(layer: Layer) -> tuple[OperatorGraph, OperatorGraph]:
    return layer.forward, layer.backward


def _forward_flops(config: TransformerConfig, name: str) -> int:
    """Return the forward FLOPs of a block for two samples, by closed form."""
    tokens, experts, hidden = 2 * config.sequence, config.experts, config.hidden
    assert experts
    windows = set(config.block_windows)
    seen = max(windows) if "window" in name or 0 not in windows else config.sequence
    if config.latent:
        shape, heads = config.latent, config.heads
        queries, joint = heads * shape.width, heads * (shape.plain + shape.value)
        rank = shape.query_rank
        weights = rank * (hidden + queries) if rank else hidden * queries
        weights += hidden * (shape.kv_rank + shape.rotary) + shape.kv_rank * joint
        weights += heads * shape.value * hidden
        core = heads * seen * (shape.width + shape.value)
        if config.indexer:  # all heads share keys and values, and an indexer scores all pairs
            chosen, index = config.indexer.top_k, config.indexer.heads * config.indexer.width
            core = heads * chosen * (2 * shape.kv_rank + shape.rotary) + seen * index
            weights += rank * index + hidden * (config.indexer.width + config.indexer.heads)
    else:
        inner = config.heads * config.head_size
        weights = hidden * (2 * inner + 2 * config.key_value_heads * config.head_size)
        core = 2 * seen * inner
    if "dense" in name:
        weights += 3 * hidden * config.inner
    else:
        weights += hidden * experts.count + 3 * hidden * experts.shared
        weights += hidden if experts.shared_gate else 0
        weights += experts.top_k * 3 * hidden * experts.feed_forward
    return 2 * tokens * (weights + core)


@families
def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """Only the chosen experts count, and latent heads have widths of their own."""
    for name, block in captured_blocks(config).items():
        assert block.forward.flops == _forward_flops(config, name), name
        assert block.backward.flops == pytest.approx(2 * block.forward.flops, rel=0.25)


@families
def test_parameters_are_those_of_the_layers(config: TransformerConfig) -> None:
    """The total is that of the layers; the chosen share of the routed ones is active."""
    variant, experts = captured_whole(config), config.experts
    assert experts
    layers = [variant.layers[index] for _, index in variant.nodes]
    tied = [layer.tied_parameters for layer in layers]
    total = sum(layer.parameters for layer in layers) - sum(tied) + max(tied)
    assert total == count_parameters(config)
    routed = sum(layer.routed_parameters or 0 for layer in layers)
    biases = experts.feed_forward * 2 + config.hidden if experts.bias else 0
    each = 3 * config.hidden * experts.feed_forward + biases
    assert routed == each * experts.count * sum(config.routed_blocks)
    idle = each * (experts.count - experts.top_k) * sum(config.routed_blocks)
    assert count_parameters(config, active=True) == total - idle


@families
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(config: TransformerConfig, split: bool) -> None:
    """Shards have the model's FLOPs once, the routed weights once, and read each of them once."""
    degree, whole = 4, captured_blocks(config)
    for name, shard in captured_blocks(config, degree, split=split).items():
        routed, biases = (shard.routed_parameters or 0), 0
        if config.experts and config.experts.bias:  # those of the second products are whole
            biases = config.experts.count * config.hidden
        assert degree * (routed - biases) == (whole[name].routed_parameters or 0) - biases
        for part, all_of_it in zip(_graphs(shard), _graphs(whole[name]), strict=True):
            assert degree * part.flops == all_of_it.flops
            assert degree * _grouped_bytes(part) == _grouped_bytes(all_of_it)
        assert shard.output_bytes == whole[name].output_bytes // (degree if split else 1)


def _grouped_bytes(graph: OperatorGraph) -> int:
    """Return the bytes of the second operands of grouped products: the experts' weights."""
    grouped = {
        index
        for index, operator in enumerate(graph.operators)
        if operator.id.startswith("grouped_product") and operator.gemms[0].batch > 1
    }
    return sum(
        tensor.elements * tensor.element_bytes
        for tensor in graph.tensors
        for read in tensor.readers
        if read.operator in grouped and read.second_operand and tensor.kind == "weight"
    )


@families
def test_every_recompute_keeps_less_and_runs_what_it_needs(config: TransformerConfig) -> None:
    """Stashes fall from none to full, and fusion loses no product."""
    for block in captured_blocks(config).values():
        stash = block.stash_bytes
        assert stash.none >= stash.selective >= stash.full > 0
        assert 0 < block.selective_recompute.flops < block.forward.flops
        for graph in _graphs(block):
            fused = fuse(graph, "epilogue")
            assert fused.flops == graph.flops
            assert _products(fused) == _products(graph)


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "qwen3_next"])
def test_only_every_sparse_step_has_experts(tmp_path: Path, family: str) -> None:
    """Qwen's mixtures have experts in every ``decoder_sparse_step``-th block, and not in others."""
    path = tmp_path / "config.json"
    fields = {"model_type": family, "num_hidden_layers": 5, "decoder_sparse_step": 2}
    path.write_text(json.dumps({**fields, "mlp_only_layers": [3]}))
    config = read_huggingface_config(path)
    if config.pattern:
        networks = [sublayers[-1] for sublayers in config.pattern.split()]
        assert networks == ["-", "E", "-", "-", "-"]
    else:
        assert config.experts and config.experts.dense_layers == (0, 2, 3, 4)


def _products(graph: OperatorGraph) -> Counter[Gemm]:
    return Counter(gemm for operator in graph.operators for gemm in operator.gemms)


@pytest.mark.parametrize("name", KNOWN_PARAMETERS)
def test_named_models_have_their_parameters(name: str) -> None:
    """The totals are those of the releases, and FLOPs follow the active ones."""
    workload = load_workload(name)
    total, active = KNOWN_PARAMETERS[name]
    assert (workload.parameters, workload.active_parameters) == (total, active)
    config = model_config(name)
    dense_flops = 2 * config.sequence * (active - config.vocabulary * config.hidden)
    assert dense_flops < workload.variants[0].forward_flops < 1.6 * dense_flops


def test_dense_models_have_no_experts() -> None:
    """Nothing of experts is in a dense workload, nor in its JSON."""
    workload = load_workload("llama2-7b")
    assert workload.active_parameters is UNSET
    assert all(layer.routed_parameters is UNSET for layer in workload.variants[0].layers)


shapes = st.builds(
    lambda tokens, hidden, inner, count, top_k, activation: TransformerConfig(
        layers=1,
        hidden=8 * hidden,
        heads=4,
        sequence=tokens,
        vocabulary=64,
        experts=Experts(count, min(count, top_k), 4 * inner),
        **{**LLAMA, "activation": activation},
    ),
    st.integers(1, 300),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from(["swiglu", "geglu", "gelu", "relu"]),
)


@settings(max_examples=15, deadline=None)
@given(shapes)
def test_more_experts_never_change_the_active_flops(config: TransformerConfig) -> None:
    """Only the router grows with the experts, and padding is no part of the model."""
    assert config.experts
    more = replace(config, experts=replace(config.experts, count=3 * config.experts.count))
    few, many = (blocks_of(each)["block"] for each in (config, more))
    router = 2 * 2 * config.sequence * config.hidden * 2 * config.experts.count
    assert many.forward.flops - few.forward.flops == router
    assert many.backward.flops - few.backward.flops == 2 * router
    for graph in (few.forward, few.backward, many.forward, many.backward):
        computed = sum(operator.flops for operator in graph.operators)
        assert computed >= graph.flops > 0


@settings(max_examples=15, deadline=None)
@given(shapes, st.integers(1, 3))
def test_one_expert_is_a_dense_layer(config: TransformerConfig, tiles: int) -> None:
    """Without the router, full tiles of one expert are the products of a dense network."""
    assert config.experts
    one = replace(
        config,
        sequence=TILE_ROWS * tiles // 2,
        experts=replace(config.experts, count=1, top_k=1),
    )
    dense = replace(one, experts=UNSET, feed_forward=config.experts.feed_forward)
    routed, plain = (blocks_of(each)["block"] for each in (one, dense))
    assert routed.parameters == plain.parameters + config.hidden  # the router's
    router = 2 * 2 * one.sequence * one.hidden
    assert routed.forward.flops == plain.forward.flops + router
    assert routed.backward.flops == plain.backward.flops + 2 * router
    assert all(not op.surplus_flops for graph in _graphs(routed) for op in graph.operators)
    if config.activation in ("gelu", "relu"):  # a gate is computed beside its value, in one product
        for ours, theirs in zip(_graphs(routed), _graphs(plain), strict=True):
            assert not _products(theirs) - _products(ours)


@given(st.integers(1, 10**6), st.integers(1, 512), st.sampled_from([1, 16, 128]))
def test_rows_fill_whole_tiles(rows: int, experts: int, tile: int) -> None:
    """Every row has a place, and an expert has less than a tile more than its share."""
    of_expert = rows_of_expert(rows, experts, tile)
    assert of_expert % tile == 0
    assert rows <= experts * of_expert < rows + experts * tile
    gemm = grouped_product(rows, (experts, 8, 4), tile)
    assert gemm.flops - surplus_flops(gemm, rows, (experts, 8, 4)) == 2 * rows * 8 * 4


def test_latent_attention_has_its_own_widths_and_stash() -> None:
    """Scores have the width of the queries; what the backward needs is kept once."""
    config = TransformerConfig(
        layers=1, hidden=64, heads=4, sequence=32, vocabulary=64, feed_forward=128,
        latent=LatentAttention(24, 16, 8, 12, query_rank=40), **LLAMA,
    )  # fmt: skip
    block = _block(config)
    (core,) = [op for op in block.forward.operators if op.attention is not None]
    assert [(gemm.n, gemm.k) for gemm in core.gemms] == [(32, 24), (12, 32)]
    # Queries, keys, values and context of all heads are in the stash, in bf16.
    assert block.stash_bytes.none > 2 * 2 * 32 * 4 * (24 + 24 + 12 + 12)
    eager = _block(replace(config, attention="eager"))
    assert eager.forward.flops == block.forward.flops


def test_sinks_are_a_parameter_of_every_head() -> None:
    """Their gradient comes out of the fused backward, and no operator more."""
    shape: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 4, "sequence": 32, **LLAMA}
    plain = TransformerConfig(vocabulary=64, **shape)
    sinks = replace(plain, sinks=True)
    assert _block(sinks).parameters == _block(plain).parameters + 4
    assert _products(_block(sinks).backward) == _products(_block(plain).backward)
    assert len(_block(sinks).backward.operators) == len(_block(plain).backward.operators)
    recomputed = [op.attention for op in _block(sinks).selective_recompute.operators]
    assert not any(recomputed)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"experts": Experts(4, 2, 8, dense_layers=(2,))}, "counted from 0"),
        ({"sinks": True, "attention": "eager"}, "flash attention"),
        ({"latent": LatentAttention(8, 8, 8, 8), "kv_heads": 2}, "as many key heads"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], words: str) -> None:
    """Fields that contradict each other are one sentence."""
    with pytest.raises(InputError, match=words):
        TransformerConfig(
            **{**LLAMA, "layers": 2, "hidden": 64, "heads": 4, "sequence": 8, "vocabulary": 9}
            | fields
        )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Experts(4, 5, 8), "top_k is 5, but it must be at most the 4 experts"),
        (lambda: Experts(0, 1, 8), "count is 0"),
        (lambda: model_config(f"{MOE[:-2]}{2**23},shared=-1"), "shared is -8388608"),
        (lambda: TransformerConfig(1, 64, 4, 8, 9, experts=Experts(2**20, 1, 2**16)), "to address"),
        (lambda: LatentAttention(0, 8, 8, 8), "kv_rank is 0"),
        (lambda: Experts(8, 2, 8, groups=3), "groups is 3, but it must divide the 8 experts"),
        (lambda: Experts(8, 3, 8, groups=4, top_groups=1), "have at least the 3 experts"),
        (lambda: model_config("moe:layers=2,hidden=8,heads=2"), "lacks sequence, vocab, experts"),
        (lambda: model_config(f"{MOE},dense_layers=1"), "lacks ffn"),
        (lambda: model_config(f"{MOE},ffn=8,dense_layers=3"), "dense_layers is 3"),
        (lambda: model_config(f"{MOE},kv_rank=8"), "lacks nope_dim, rope_dim, v_dim"),
        (lambda: load_workload(f"{MOE},heads=2"), "once"),
    ],
)
def test_bad_sizes_are_refused(make: Any, words: str) -> None:
    """Each is one sentence with the value."""
    with pytest.raises(InputError, match=words):
        make()


MOE = "moe:layers=2,hidden=64,heads=4,sequence=32,vocab=64,experts=8,top_k=2,expert_ffn=16"


def test_a_model_string_states_everything() -> None:
    """Shared experts have the width of the others; dense layers come first."""
    model = f"{MOE},ffn=96,dense_layers=1,shared=2"
    assert model_config(model).experts == Experts(8, 2, 16, shared=32, dense_layers=(0,))
    latent = f"{MOE},kv_rank=24,q_rank=40,nope_dim=16,rope_dim=8,v_dim=12"
    assert model_config(latent).latent == LatentAttention(24, 16, 8, 12, 40)
    workload = load_workload(model)
    assert [layer.name for layer in workload.variants[0].layers] == [
        "embedding",
        "dense_block",
        "block",
        "head",
    ]


def test_a_degree_must_divide_every_width() -> None:
    """Widths of experts count where blocks have them."""
    config = model_config(f"{MOE},ffn=96,dense_layers=1,shared=3")
    assert config.divides(4)
    assert not replace(config, experts=Experts(8, 2, 18)).divides(4)
    with pytest.raises(InputError, match="feed-forward width 96 and 16 and 48"):
        load_workload(f"{MOE},ffn=96,dense_layers=1,shared=3", tensor_parallel=(16,))


def test_a_workload_with_experts_is_a_file(tmp_path: Path) -> None:
    """It is read as it was written, and numbers of experts are in it."""
    workload = load_workload(f"{MOE},shared=1", tensor_parallel=(1, 2))
    path = tmp_path / "a.json"
    write_workload(workload, path)
    assert read_workload(path) == workload
    assert b'"active_parameters"' in path.read_bytes()
    text = path.read_text("utf-8").replace('"routed_parameters":', '"routed_parameters":-')
    path.write_text(text, "utf-8")
    with pytest.raises(InputError, match="routed_parameters"):
        read_workload(path)

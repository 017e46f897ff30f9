"""Laws of every family of Hugging Face configurations, in small."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import capture_transformer, count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.graph import AttentionScores, Layer, WorkloadVariant
from phaze_opt.workload.huggingface import read_huggingface_config
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.zoo import load_workload
from tests.workload.blocks import captured_blocks, captured_whole

TOKENS = 32
_STREAM: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 128}
_TEXT = {**_STREAM, "vocab_size": 96, "max_position_embeddings": TOKENS, "num_hidden_layers": 3}
_GROUPED = {**_TEXT, "num_key_value_heads": 4}

SMALL: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 8},
    "qwen2": {**_GROUPED, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8},
    "qwen3": {**_GROUPED, "head_dim": 16, "attention_bias": True},
    "gemma": {**_TEXT, "num_key_value_heads": 8, "head_dim": 16},
    "gemma2": {**_GROUPED, "head_dim": 16, "sliding_window": 8},
    "gemma3_text": {**_GROUPED, "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2},
    "phi3": {**_GROUPED, "sliding_window": 8, "partial_rotary_factor": 0.5},
    "opt": {**_TEXT, "ffn_dim": 128, "activation_dropout": 0.1, "attention_dropout": 0.1},
    "gpt_neox": {**_TEXT, "hidden_dropout": 0.1},
    "falcon": {**_TEXT, "new_decoder_architecture": True, "num_kv_heads": 4},
    "bert": _TEXT,
    "roberta": {**_TEXT, "max_position_embeddings": TOKENS + 2},
    "vit": {
        **_STREAM,
        "num_hidden_layers": 3,
        "image_size": 16,
        "patch_size": 4,
        "qkv_bias": False,
    },
    "t5": {
        **{"d_model": 64, "num_heads": 8, "d_kv": 16, "d_ff": 128, "num_layers": 2},
        **{"num_decoder_layers": 3, "vocab_size": 96, "n_positions": TOKENS},
    },
    "olmo": _TEXT,
    "olmo2": _GROUPED,
    "smollm3": {**_GROUPED, "no_rope_layer_interval": 2},
    "glm4": {**_GROUPED, "head_dim": 16},
    "cohere2": {**_GROUPED, "sliding_window": 8, "sliding_window_pattern": 2},
    "starcoder2": {**_GROUPED, "sliding_window": 8},
    "nemotron": {**_GROUPED, "head_dim": 16},
    "phi": _TEXT,
    "hunyuan_v1_dense": {**_GROUPED, "head_dim": 16},
    "internlm2": _GROUPED,
}

families = pytest.mark.parametrize("family", SMALL)


@pytest.fixture
def config(family: str, tmp_path: Path) -> TransformerConfig:
    """Return the small configuration of a family."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **SMALL[family]}))
    return read_huggingface_config(path)


def _blocks(variant: WorkloadVariant) -> dict[str, Layer]:
    return {layer.name: layer for layer in variant.layers if "block" in layer.name}


def _replicated(config: TransformerConfig, name: str) -> int:
    """Return the parameters of a block that every device holds: norms, biases after a sum."""
    affine = {"weight": 1, "none": 0}.get(str(config.norm_parameters), 2)
    affine = affine if config.norm == "layer_norm" else 1
    norms = {"parallel_shared_norm": 1}.get(config.residual, 2)
    norms += {"both": 2}.get(config.norm_position, 0) + (name == "decoder.block")
    heads = 2 * affine * config.head_size if config.query_key_norm else 0
    heads = 0 if config.head_norm == "whole" else heads  # one norm of all heads, which are split
    projection = config.bias if config.projection_bias is None else config.projection_bias
    biases = config.hidden * (int(config.bias) + int(projection))
    return norms * affine * config.hidden + heads + biases


def _forward_flops(config: TransformerConfig, name: str) -> int:
    """Return the forward FLOPs of a block for two samples, by closed form."""
    tokens, size = 2 * config.sequence, config.head_size
    inner, context = config.heads * size, config.key_value_heads * size
    matrices = 3 if config.activation in ("swiglu", "geglu") else 2
    attentions = 2 if name == "decoder.block" else 1
    windows = set(config.block_windows)
    full = 0 in windows and "window" not in name
    seen = config.sequence if full else max(windows)
    dense = attentions * config.hidden * (2 * inner + 2 * context)
    dense += matrices * config.hidden * config.inner
    return 2 * tokens * dense + attentions * 4 * tokens * seen * inner


@families
def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """A window, wide heads, shared heads, gates and a second attention each count once."""
    for name, block in captured_blocks(config).items():
        assert block.forward.flops == _forward_flops(config, name), name


@families
def test_shards_add_up(config: TransformerConfig) -> None:
    """Shards of a block hold its parameters once, replicated ones once each; products are split."""
    tensor_degree = 4
    whole, shard = captured_blocks(config), captured_blocks(config, tensor_degree)
    assert whole.keys() == shard.keys()
    for name, block in whole.items():
        copied = _replicated(config, name)
        assert tensor_degree * (shard[name].parameters - copied) == block.parameters - copied, name
        assert tensor_degree * shard[name].forward.flops == block.forward.flops
        assert tensor_degree * shard[name].backward.flops == block.backward.flops
        sums = 3 if name == "decoder.block" else 2
        stream = 2 * 2 * config.sequence * config.hidden
        assert collective_bytes(shard[name].forward) == {"all_reduce": sums * stream}


@families
def test_parameters_are_those_of_the_layers(config: TransformerConfig) -> None:
    """The total is that of the captured layers, with the word embedding once."""
    variant = captured_whole(config)
    layers = [variant.layers[index] for _, index in variant.nodes]
    tied = [layer.tied_parameters for layer in layers]
    total = sum(layer.parameters for layer in layers) - sum(tied) + max(tied)
    assert total == count_parameters(config)


@pytest.mark.parametrize("family", ["gemma2", "falcon", "t5", "olmo2"])
def test_the_sequence_may_be_split(config: TransformerConfig) -> None:
    """With sequence parallelism the same products run, and the residual stream is a share."""
    tensor_degree = 4
    whole, shard = (
        captured_blocks(config, tensor_degree),
        captured_blocks(config, tensor_degree, split=True),
    )
    for name, block in whole.items():
        assert shard[name].forward.flops == block.forward.flops
        assert tensor_degree * shard[name].output_bytes == block.output_bytes


def test_a_window_makes_a_layer_of_its_own() -> None:
    """Blocks with and without a window are two layers; a window of the whole sequence is none."""
    config = TransformerConfig(
        layers=4, hidden=32, heads=4, sequence=16, vocabulary=50, windows=(8, 0, 8, 16),
        attention="flash",
    )  # fmt: skip
    variant = captured_whole(config)
    assert [layer.name for layer in variant.layers] == [
        "embedding",
        "window_block",
        "block",
        "head",
    ]
    assert [index for _, index in variant.nodes] == [0, 1, 2, 1, 2, 3]
    window, block = variant.layers[1:3]
    assert window.parameters == block.parameters
    assert window.stash_bytes == block.stash_bytes
    core = 4 * 2 * 16 * 32  # FLOPs per token that is seen
    assert block.forward.flops - window.forward.flops == 8 * core
    for graph in (window.forward, window.backward):
        (scores,) = [one.attention for one in graph.operators if one.attention is not None]
        assert scores == AttentionScores(8, 16, 8, causal=True)
        # The first eight queries see fewer keys than the window has.
        assert scores.visible == 8 * (16 * 8 - 8 * 7 // 2)


def test_layers_without_rotation_are_layers_of_their_own() -> None:
    """They lack the two rotations and nothing else."""
    config = TransformerConfig(
        layers=4, hidden=32, heads=4, sequence=16, vocabulary=50, unrotated_layers=(1, 3), **LLAMA
    )
    variant = captured_whole(config)
    names = [variant.layers[index].name for _, index in variant.nodes]
    assert names == ["embedding", *["block", "unrotated_block"] * 2, "head"]
    rotated, unrotated = variant.layers[1:3]
    assert unrotated.parameters == rotated.parameters
    assert unrotated.forward.flops == rotated.forward.flops
    assert len(rotated.forward.operators) - len(unrotated.forward.operators) == 2


@pytest.mark.parametrize("chunk", [4, 8, 16, 32])
def test_a_chunk_is_a_short_sequence(chunk: int) -> None:
    """Attention within chunks is that of as many more samples, each of one chunk."""
    shape: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 4, "vocabulary": 50, **LLAMA}
    config = TransformerConfig(sequence=16, windows=(chunk,), chunked=True, **shape)
    chunked = next(iter(captured_blocks(config).values()))
    tokens = min(chunk, 16)
    short = TransformerConfig(sequence=tokens, **shape)
    whole = capture_transformer(
        short, tensor_parallel=1, microbatch=2 * 16 // tokens, sequence_parallel=False
    )
    (block,) = _blocks(whole).values()
    for ours, theirs in (
        (chunked.forward, block.forward),
        (chunked.backward, block.backward),
        (chunked.selective_recompute, block.selective_recompute),
    ):
        assert (ours.flops, ours.masked_flops) == (theirs.flops, theirs.masked_flops)
        cores = [[op.attention for op in g.operators if op.attention] for g in (ours, theirs)]
        assert cores[0] == cores[1]
    # The table of positions of a longer sequence is longer; all else is the same memory.
    assert chunked.stash_bytes == block.stash_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"windows": (12,), "chunked": True},
            "sequence is 32, but it must be a multiple of the 12",
        ),
        ({"windows": (8,), "chunked": True, "attention": "eager"}, "chunks needs flash"),
        ({"unrotated_layers": (1,)}, "layers from 0 to 0"),
        ({"unrotated_layers": (0,), "positions": "learned"}, "needs rotary positions"),
        ({"norm_parameters": "none"}, "needs layer_norm"),
        ({"activation": "relu3"}, "it must be gelu or relu or relu2"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], words: str) -> None:
    """Fields that contradict each other are one sentence."""
    plain: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 4, "vocabulary": 50, **LLAMA}
    with pytest.raises(InputError, match=words):
        TransformerConfig(**{**plain, "sequence": TOKENS, **fields})


def test_chunks_are_not_shared_among_devices(tmp_path: Path) -> None:
    """Whether tokens of a chunk are on one device is not known; a whole sequence may be shared."""
    shape = {**_GROUPED, "num_local_experts": 4, "attention_chunk_size": 16}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama4_text", **shape}))
    with pytest.raises(InputError, match="within chunks of 16 tokens"):
        load_workload(str(path), sequence=32, context_parallel=(2,))
    load_workload(str(path), sequence=16, context_parallel=(2,))


def test_every_block_of_a_decoder_reads_the_encoder() -> None:
    """T5's graph: two stacks, whose blocks read their biases, joined at every decoder block."""
    config = TransformerConfig(
        layers=2, encoder_layers=2, hidden=32, heads=4, sequence=8, vocabulary=50, norm="rms_norm",
        positions="relative", relative_buckets=4, bias=False,
    )  # fmt: skip
    variant = captured_whole(config)
    names = [name for name, _ in variant.nodes]
    stream, bias = 2 * 2 * 8 * 32, 2 * 4 * 8 * 8
    edges = {(names[a], names[b]): size for a, b, size in variant.edges}
    assert edges == {
        ("encoder.embedding", "encoder.block.0"): stream + bias,
        ("encoder.embedding", "encoder.block.1"): bias,
        ("encoder.block.0", "encoder.block.1"): stream,
        ("encoder.block.1", "encoder.norm"): stream,
        ("encoder.norm", "decoder.block.0"): stream,
        ("encoder.norm", "decoder.block.1"): stream,
        ("decoder.embedding", "decoder.block.0"): stream + bias,
        ("decoder.embedding", "decoder.block.1"): bias,
        ("decoder.block.0", "decoder.block.1"): stream,
        ("decoder.block.1", "head"): stream,
    }


def test_soft_caps_are_vector_work_and_stash() -> None:
    """A cap of the scores is work on the chip; one of the logits is kept for the backward."""
    plain = TransformerConfig(
        layers=1, hidden=32, heads=4, sequence=16, vocabulary=50, attention="flash", dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    capped = replace(plain, attention_softcap=50.0, logit_softcap=30.0)
    _, block, head = captured_whole(plain).layers
    _, capped_block, capped_head = captured_whole(capped).layers
    for before, after in (
        (block.forward, capped_block.forward),
        (block.backward, capped_block.backward),
    ):
        assert after.flops == before.flops
        elements = [
            sum(w.elements for op in graph.operators if op.attention for w in op.vector)
            for graph in (before, after)
        ]
        assert elements[1] > elements[0]
    assert capped_block.stash_bytes == block.stash_bytes
    logits = 2 * 2 * 16 * 50
    assert capped_head.stash_bytes.none == head.stash_bytes.none + logits

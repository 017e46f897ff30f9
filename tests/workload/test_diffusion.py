"""Diffusion transformers of image and text tokens: Stable Diffusion 3 and FLUX.1 in small."""

from pathlib import Path
from typing import Any

import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.diffusion import Diffusion
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_blocks, captured_whole
from tests.workload.test_huggingface import _write

SD3: dict[str, Any] = {
    **{"_class_name": "SD3Transformer2DModel", "num_layers": 3, "num_attention_heads": 4},
    **{"attention_head_dim": 16, "caption_projection_dim": 64, "sample_size": 16},
    **{"joint_attention_dim": 24, "pooled_projection_dim": 20, "qk_norm": "rms_norm"},
}
FLUX: dict[str, Any] = {
    **{"_class_name": "FluxTransformer2DModel", "num_layers": 2, "num_single_layers": 2},
    **{"num_attention_heads": 4, "attention_head_dim": 16, "guidance_embeds": True},
    **{"joint_attention_dim": 24, "pooled_projection_dim": 20},
}
HIDDEN, SAMPLES = 64, 2  # as of captured blocks
IMAGE = {"sd3": 64, "flux": 4096}
TEXT = {"sd3": 333, "flux": 512}
kinds = pytest.mark.parametrize("kind", ["sd3", "flux"])


@pytest.fixture
def model(kind: str, tmp_path: Path) -> str:
    """Return the path of a small configuration."""
    return _write(tmp_path, **{"sd3": SD3, "flux": FLUX}[kind])


def _layers(variant: WorkloadVariant) -> dict[str, Layer]:
    return {layer.name: layer for layer in variant.layers}


@kinds
def test_flops_are_the_closed_form(kind: str, model: str) -> None:
    """Both streams have all products, the attention sees all tokens, and vectors are one row."""
    image, text = IMAGE[kind], TEXT[kind]
    tokens, square = image + text, HIDDEN * HIDDEN
    core = 4 * tokens * tokens * HIDDEN
    # Queries, keys, values, projection and feed-forward network; six vectors for each stream.
    forward = {
        "condition": 2 * (256 * HIDDEN + square) * (2 if kind == "flux" else 1)
        + 2 * (20 * HIDDEN + square),
        "embedding": 2 * (image * 64 + text * 24) * HIDDEN,
        "block": 2 * tokens * 12 * square + 2 * 12 * square + core,
        "head": 2 * 2 * square + 2 * image * HIDDEN * 64,
    }
    if kind == "sd3":
        last = 2 * (image * 12 + text * 3) * square + 2 * 8 * square + core
        forward["last_block"] = last
    else:
        forward["join"] = 0
        forward["single_block"] = 2 * tokens * 12 * square + 2 * 3 * square + core
    layers = _layers(captured_whole(model_config(model)))
    assert {name: layer.forward.flops for name, layer in layers.items()} == {
        name: SAMPLES * flops for name, flops in forward.items()
    }


@kinds
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(kind: str, model: str, split: bool) -> None:
    """Products and attention are shared out; what vectors give is whole on every device."""
    config, degree = model_config(model), 4
    if split and kind == "sd3":  # 333 tokens of text
        with pytest.raises(InputError, match="333 tokens of text are not a multiple of 4"):
            load_workload(model, tensor_parallel=(degree,), sequence_parallel=True)
        return
    whole, shard = captured_blocks(config), captured_blocks(config, degree, split=split)
    streams = {"block": 2, "last_block": 2, "single_block": 1}
    vectors = {"block": 12, "last_block": 8, "single_block": 3}
    # Biases behind a sum, of attention and feed-forward network of each stream.
    biases = {"block": 4, "last_block": 2, "single_block": 1}
    for name, count in streams.items():
        if name not in whole:
            continue
        for graph in ("forward", "backward"):
            ours, theirs = getattr(shard[name], graph), getattr(whole[name], graph)
            assert degree * ours.flops == theirs.flops
        copied = vectors[name] * (HIDDEN * HIDDEN + HIDDEN) + biases[name] * HIDDEN
        copied += count * 2 * 16  # norms of heads
        ours, theirs = shard[name].parameters, whole[name].parameters
        assert degree * (ours - copied) == theirs - copied
        assert shard[name].output_bytes == whole[name].output_bytes // (degree if split else 1)


@kinds
def test_parameters_are_those_of_the_layers(kind: str, model: str) -> None:
    """The total is that of the captured layers."""
    variant = captured_whole(model_config(model))
    total = sum(variant.layers[index].parameters for _, index in variant.nodes)
    assert total == count_parameters(model_config(model))


def test_the_vector_skips_to_every_block(tmp_path: Path) -> None:
    """Both streams go along the chain; the image alone leaves the last block of two."""
    variant = captured_whole(model_config(_write(tmp_path, **SD3)))
    names = variant.names
    vector, x, text = (2 * SAMPLES * count * HIDDEN for count in (1, 64, 333))
    assert {(names[a], names[b]): size for a, b, size in variant.edges} == {
        ("condition", "block.0"): vector,
        ("condition", "block.1"): vector,
        ("condition", "block.2"): vector,
        ("condition", "head"): vector,
        ("embedding", "block.0"): x + text,
        ("block.0", "block.1"): x + text,
        ("block.1", "block.2"): x + text,
        ("block.2", "head"): x,
    }


def test_a_joint_stream_follows_two(tmp_path: Path) -> None:
    """FLUX.1 joins the streams, and the head reads the image in front of the joint one."""
    variant = captured_whole(model_config(_write(tmp_path, **FLUX)))
    names = variant.names
    assert names == (
        *("condition", "embedding", "block.0", "block.1"),
        *("join", "single_block.0", "single_block.1", "head"),
    )
    edges = {(names[a], names[b]) for a, b, _ in variant.edges}
    assert ("condition", "single_block.1") in edges and ("condition", "join") not in edges


@kinds
def test_it_trains(kind: str, model: str) -> None:
    """MFU follows the model's FLOPs; an image of fewer pixels is a shorter sequence."""
    evaluation = po.evaluate(
        load_workload(model, sequence=256),
        po.load_accelerator("h100"),
        po.load_cluster("dgx-h100", devices=8),
        po.Training(global_batch=16, microbatch=1, recompute="selective"),
        placement=(2, 4, 1),
    )
    assert evaluation.feasible and 0.0 < evaluation.mfu < 1.0
    assert load_workload(model, sequence=256).sequence == 256
    eager = load_workload(model, sequence=256, attention="eager")
    fused = load_workload(model, sequence=256)
    assert eager.variants[0].forward_flops == fused.variants[0].forward_flops


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**SD3, "qk_norm": "layer_norm"}, "qk_norm is \"layer_norm\""),
        ({**SD3, "dual_attention_layers": [0, 1]}, "dual_attention_layers is"),
        ({**SD3, "caption_projection_dim": 32}, "caption_projection_dim is 32"),
        ({**SD3, "out_channels": 8}, "out_channels is 8"),
        ({**SD3, "patch_size": 0}, "patch_size is 0"),
        ({**FLUX, "out_channels": 16}, "out_channels is 16"),
        ({**FLUX, "_class_name": "UNet2DConditionModel"}, "Unknown model_type"),
    ],
)  # fmt: skip
def test_other_mathematics_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """A key that changes operators is refused by name and value."""
    with pytest.raises(InputError, match=words):
        model_config(_write(tmp_path, **fields))


def test_contradictions_are_refused(tmp_path: Path) -> None:
    """Fields that contradict each other are one sentence, and so is a shared sequence."""
    with pytest.raises(InputError, match="text_tokens is 0, but it must be between 1"):
        Diffusion(0, 8, 8)
    with pytest.raises(InputError, match="last block that keeps the text"):
        Diffusion(8, 8, 8, single_layers=1)
    shape: dict[str, Any] = {"layers": 1, "hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 9}
    with pytest.raises(InputError, match="whose tokens see each other"):
        TransformerConfig(**shape, diffusion=Diffusion(8, 8, 8))
    with pytest.raises(InputError, match="shared only by fused self-attention"):
        load_workload(_write(tmp_path, **SD3), context_parallel=(2,))

"""Models of two stacks: speech that text attends to, images beside text."""

from pathlib import Path
from typing import Any

import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_blocks, captured_whole
from tests.workload.test_huggingface import _write

SPEECH: dict[str, Any] = {
    **{"model_type": "whisper", "d_model": 64, "vocab_size": 96, "num_mel_bins": 8},
    **{"encoder_attention_heads": 8, "decoder_attention_heads": 4, "encoder_layers": 2},
    **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 192, "decoder_layers": 3},
    **{"max_source_positions": 40, "max_target_positions": 24},
}
IMAGES: dict[str, Any] = {
    **{"model_type": "clip", "projection_dim": 24},
    "text_config": {
        **{"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64},
        **{"num_hidden_layers": 3, "max_position_embeddings": 12, "vocab_size": 48},
    },
    "vision_config": {
        **{"hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 128},
        **{"num_hidden_layers": 2, "image_size": 16, "patch_size": 4},
    },
}
POOLED: dict[str, Any] = {
    "model_type": "siglip",
    "text_config": {**IMAGES["text_config"], "projection_size": 64},
    "vision_config": IMAGES["vision_config"],
}
SAMPLES = 2
models = pytest.mark.parametrize(
    "fields", [SPEECH, IMAGES, POOLED], ids=["speech", "images", "pooled"]
)


@pytest.fixture
def model(fields: dict[str, Any], tmp_path: Path) -> str:
    """Return the path of a small configuration."""
    return _write(tmp_path, **fields)


def _layers(variant: WorkloadVariant) -> dict[str, Layer]:
    return {layer.name: layer for layer in variant.layers}


def _block_flops(tokens: int, hidden: int, inner: int) -> int:
    """Return the forward FLOPs of one sample in a block without a second attention."""
    return 2 * tokens * (4 * hidden * hidden + 2 * hidden * inner) + 4 * tokens * tokens * hidden


@pytest.mark.parametrize("attention", ["eager", "flash"])
def test_speech_flops_are_the_closed_form(tmp_path: Path, attention: Any) -> None:
    """Two convolutions over twice the frames, and attention to as many keys as there are frames."""
    workload = load_workload(_write(tmp_path, **SPEECH), microbatch=(SAMPLES,), attention=attention)
    layers = _layers(workload.variants[0])
    frames, tokens, hidden = 40, 24, 64
    first, second = 2 * frames * 3 * 8 * hidden, frames * 3 * hidden * hidden
    crossed = 2 * (2 * tokens + 2 * frames) * hidden * hidden + 4 * tokens * frames * hidden
    forward = {
        "encoder.embedding": 2 * (first + second),
        "encoder.block": _block_flops(frames, hidden, 128),
        "encoder.norm": 0,
        "decoder.embedding": 0,
        "decoder.block": _block_flops(tokens, hidden, 192) + crossed,
        "head": 2 * tokens * hidden * 96,
    }
    assert {name: layer.forward.flops for name, layer in layers.items()} == {
        name: SAMPLES * flops for name, flops in forward.items()
    }
    # The spectrogram needs no gradient: of the first convolution only the weights have one.
    backward = layers["encoder.embedding"].backward.flops
    assert backward == SAMPLES * 2 * (first + 2 * second)
    cores = [op.attention for op in layers["decoder.block"].forward.operators if op.attention]
    assert len(cores) == (2 if attention == "flash" else 0)


def test_images_flops_are_the_closed_form(tmp_path: Path) -> None:
    """Patches, two stacks of blocks, two projections, and all pairs of the microbatch."""
    layers = _layers(captured_whole(model_config(_write(tmp_path, **IMAGES))))
    forward = {
        "image.embedding": 2 * 16 * 48 * 64,
        "image.block": _block_flops(17, 64, 128),
        "image.end": 2 * 64 * 24,
        "text.embedding": 0,
        "text.block": _block_flops(12, 32, 64),
        "head": 2 * 32 * 24 + 2 * SAMPLES * 24,
    }
    assert {name: layer.forward.flops for name, layer in layers.items()} == {
        name: SAMPLES * flops for name, flops in forward.items()
    }


def test_pooled_images_flops_are_the_closed_form(tmp_path: Path) -> None:
    """One query attends to all patches, and a network of its own follows."""
    config = model_config(_write(tmp_path, **POOLED))
    layers = _layers(captured_whole(config))
    keys_and_values, one = 2 * 16 * 64 * 64, 2 * 64 * 64 + 2 * 64 * 128
    pooled = 2 * (keys_and_values + one) + 4 * 16 * 64
    assert layers["image.end"].forward.flops == SAMPLES * pooled
    assert layers["image.block"].forward.flops == SAMPLES * _block_flops(16, 64, 128)
    assert layers["text.block"].forward.flops == SAMPLES * _block_flops(12, 32, 64)
    assert layers["head"].forward.flops == SAMPLES * (2 * 32 * 64 + 2 * SAMPLES * 64)
    assert not config.causal


@models
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(model: str, split: bool) -> None:
    """Blocks are split, and what is replicated in them are norms and biases after sums."""
    config, degree = model_config(model), 4
    if split and config.images and not config.images.pools:  # 17 tokens of an image
        with pytest.raises(InputError, match="is not a multiple of 4"):
            load_workload(model, tensor_parallel=(degree,), sequence_parallel=True)
        return
    whole, shard = captured_blocks(config), captured_blocks(config, degree, split=split)
    for name in whole:
        for graph in ("forward", "backward"):
            ours, theirs = getattr(shard[name], graph), getattr(whole[name], graph)
            assert degree * ours.flops == theirs.flops
        tower = config.images if name == "image.block" else config
        assert tower
        crosses = name == "decoder.block"
        copied = (2 + crosses) * 2 * tower.hidden + (2 + crosses) * tower.hidden
        ours, theirs = shard[name].parameters, whole[name].parameters
        assert degree * (ours - copied) == theirs - copied
        sums = collective_bytes(shard[name].forward)
        assert sums["reduce_scatter" if split else "all_reduce"] > 0
        assert shard[name].output_bytes == whole[name].output_bytes // (degree if split else 1)
    for name in (name for name in whole if name.endswith(".embedding")):
        assert shard[name].output_bytes == whole[name].output_bytes // (degree if split else 1)


@models
def test_parameters_are_those_of_the_layers(model: str) -> None:
    """The total is that of the captured layers, with the word embedding once."""
    variant = captured_whole(model_config(model))
    layers = [variant.layers[index] for _, index in variant.nodes]
    tied = [layer.tied_parameters for layer in layers]
    total = sum(layer.parameters for layer in layers) - sum(tied) + max(tied)
    assert total == count_parameters(model_config(model))


def test_every_block_of_text_reads_the_speech(tmp_path: Path) -> None:
    """What the encoder gives goes to each, beside the chain of the decoder."""
    variant = captured_whole(model_config(_write(tmp_path, **SPEECH)))
    names = variant.names
    heard, stream = 2 * SAMPLES * 40 * 64, 2 * SAMPLES * 24 * 64
    assert {(names[a], names[b]): size for a, b, size in variant.edges} == {
        ("encoder.embedding", "encoder.block.0"): heard,
        ("encoder.block.0", "encoder.block.1"): heard,
        ("encoder.block.1", "encoder.norm"): heard,
        ("encoder.norm", "decoder.block.0"): heard,
        ("encoder.norm", "decoder.block.1"): heard,
        ("encoder.norm", "decoder.block.2"): heard,
        ("decoder.embedding", "decoder.block.0"): stream,
        ("decoder.block.0", "decoder.block.1"): stream,
        ("decoder.block.1", "decoder.block.2"): stream,
        ("decoder.block.2", "head"): stream,
    }


def test_the_head_reads_both_towers(tmp_path: Path) -> None:
    """The result of the image tower skips the text tower."""
    variant = captured_whole(model_config(_write(tmp_path, **IMAGES)))
    names = variant.names
    edges = {(names[a], names[b]): size for a, b, size in variant.edges}
    assert edges["image.end", "head"] == 2 * SAMPLES * 24
    assert ("image.end", "text.embedding") not in edges
    assert len(edges) == len(names) - 1


@models
def test_a_pipeline_sends_what_skips(model: str) -> None:
    """Four stages hold it, and a stage that only passes on receives and sends."""
    evaluation = po.evaluate(
        load_workload(model),
        po.load_accelerator("tpuv4-lanes"),
        po.load_cluster("flat-4GiB", devices=4),
        po.Training(global_batch=4, microbatch=1),
        placement=(4, 1, 1),
    )
    assert evaluation.feasible and evaluation.placement
    for stage in evaluation.placement.stages:
        sent = {each.kind: each.sent_bytes for each in stage.communication}
        assert sent["transfer"] > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**SPEECH, "activation_dropout": 0.1}, "activation_dropout is 0.1"),
        ({**SPEECH, "encoder_layerdrop": 0.1}, "encoder_layerdrop is 0.1"),
        ({**SPEECH, "scale_embedding": True}, "scale_embedding is true"),
        ({**IMAGES, "vision_config": 3}, "vision_config is 3"),
        ({**IMAGES, "text_config": {"hidden_act": "silu"}}, "hidden_act is \"silu\""),
        ({**IMAGES, "vision_config": {"patch_size": 0}}, "patch_size is 0"),
        ({**POOLED, "text_config": {"projection_size": 32}}, "projection_size is 32"),
    ],
)  # fmt: skip
def test_other_mathematics_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """A key that changes operators is refused by name and value."""
    with pytest.raises(InputError, match=words):
        model_config(_write(tmp_path, **fields))


def _tower(**fields: Any) -> TransformerConfig:
    shape = {"layers": 1, "hidden": 32, "heads": 4, "sequence": 17, "vocabulary": 9}
    return TransformerConfig(**{**shape, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"encoder": _tower(hidden=64)}, "has hidden 64, but it must be 32"),
        ({"images": _tower()}, "needs a patch_size"),
        (
            {"images": _tower(patch_size=1, image_size=4, channels=1, sequence=16, pools=True)},
            "must be its width of 32",
        ),
        ({"encoder": _tower(), **LLAMA}, "needs learned positions"),
        ({"encoder": _tower(), "windows": (4,)}, "without experts and windows"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], words: str) -> None:
    """Fields that contradict each other are one sentence."""
    with pytest.raises(InputError, match=words):
        _tower(**fields)


@models
def test_sequences_are_not_shared_among_devices(model: str) -> None:
    """Context parallelism is for one stack of text; a degree must divide both stacks."""
    with pytest.raises(InputError, match="shared only by fused self-attention"):
        load_workload(model, context_parallel=(2,), attention="flash")
    with pytest.raises(InputError, match="cannot be split over 8 devices"):
        load_workload(model, tensor_parallel=(8,))

"""Diffusion transformers of a video, whose blocks attend to a text: Wan 2.1."""

from pathlib import Path
from typing import Any

import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.context_parallel import with_context_shared_out
from phaze_opt.workload.diffusion import Diffusion
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.blocks import captured_blocks, captured_whole
from tests.workload.test_huggingface import _write

SMALL: dict[str, Any] = {
    **{"_class_name": "WanTransformer3DModel", "num_layers": 2, "num_attention_heads": 4},
    **{"attention_head_dim": 16, "ffn_dim": 96, "text_dim": 24, "patch_size": [7, 20, 26]},
}
HIDDEN, SAMPLES, TOKENS, TEXT = 64, 2, 36, 512
PATCH = 7 * 20 * 26 * 16


@pytest.mark.parametrize(
    ("sizes", "parameters"),
    [
        ({}, 14_288_491_584),
        ({"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30}, 1_418_996_800),
    ],
    ids=["14b", "1.3b"],
)
def test_parameters_are_those_of_the_releases(
    tmp_path: Path, sizes: dict[str, Any], parameters: int
) -> None:
    """Wan 2.1 of text to video, whose video of 81 frames has 32,760 tokens."""
    config = model_config(_write(tmp_path, _class_name="WanTransformer3DModel", **sizes))
    assert (config.sequence, count_parameters(config)) == (32_760, parameters)


def test_flops_are_the_closed_form(tmp_path: Path) -> None:
    """Patches see each other and the text; vectors are one row, made once for all blocks."""
    variant = captured_whole(model_config(_write(tmp_path, **SMALL)))
    square, rows = HIDDEN * HIDDEN, 2 * TOKENS
    expected = {
        "condition": 2 * (256 * HIDDEN + square + 6 * square),
        "text": 2 * TEXT * (24 * HIDDEN + square),
        "embedding": rows * PATCH * HIDDEN,
        "block": rows * (6 * square + 2 * HIDDEN * 96)
        + 4 * TEXT * square
        + 4 * TOKENS * (TOKENS + TEXT) * HIDDEN,
        "head": rows * HIDDEN * PATCH,
    }
    layers = {layer.name: layer for layer in variant.layers}
    assert {name: layer.forward.flops for name, layer in layers.items()} == {
        name: SAMPLES * flops for name, flops in expected.items()
    }
    own = [variant.layers[kind].parameters for _, kind in variant.nodes]
    assert sum(own) == count_parameters(model_config(_write(tmp_path, **SMALL)))
    skips = {(variant.names[a], variant.names[b]) for a, b, _ in variant.edges if b != a + 1}
    assert skips == {
        *(("condition", reader) for reader in ("block.0", "block.1", "head")),
        *(("text", f"block.{i}") for i in range(2)),
    }


def test_shards_add_up(tmp_path: Path) -> None:
    """A group shares out products and heads; tables, norms and the text are whole everywhere."""
    config = model_config(_write(tmp_path, **SMALL))
    whole, quarters = captured_blocks(config)["block"], captured_blocks(config, 4)["block"]
    assert 4 * quarters.forward.flops == whole.forward.flops
    assert 4 * quarters.backward.flops == whole.backward.flops
    copied = 6 * HIDDEN + 2 * HIDDEN + 3 * HIDDEN  # table, norm, biases behind sums
    assert 4 * (quarters.parameters - copied) == whole.parameters - copied
    split = captured_blocks(config, 4, split=True)["block"]
    assert split.forward.flops == quarters.forward.flops
    assert 4 * split.output_bytes == quarters.output_bytes


@pytest.mark.parametrize("kind", ["ring", "gather", "a2a"])
def test_patches_are_shared_and_the_text_is_not(tmp_path: Path, kind: Any) -> None:
    """Devices of a sequence share all products but keys and values of the text, which all have."""
    workload = load_workload(_write(tmp_path, **SMALL), context_parallel=(1, 2))
    training = po.Training(4, 1, context_parallel=2, context_kind=kind)
    one, two = (
        next(each for each in workload.variants if (each.context_parallel or 1) == devices)
        for devices in (1, 2)
    )
    (shared,) = with_context_shared_out([two], training)
    block, half = (
        next(layer for layer in variant.layers if layer.name == "block")
        for variant in (one, shared)
    )
    text = 4 * TEXT * HIDDEN**2
    assert 2 * (half.forward.flops - text) == block.forward.flops - text
    result = po.evaluate(workload, "h100", "dgx-h100", training, devices=4, placement="1x2x1x1x2")
    assert result.feasible


def test_what_it_cannot_be(tmp_path: Path) -> None:
    """Patches that do not fill the video, a tower of images, and vectors that it does not have."""
    for key, value in (("patch_size", [2, 2, 2]), ("image_dim", 1280), ("out_channels", 36)):
        with pytest.raises(InputError, match=key):
            model_config(_write(tmp_path, **{**SMALL, key: value}))
    with pytest.raises(InputError, match="no single layers, guidance or pooled text"):
        Diffusion(512, 24, 20, crosses=True)

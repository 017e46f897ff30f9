"""Images in tiles that blocks of a language model attend to (Llama 3.2)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import capture_transformer, count_parameters
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.zoo import load_workload, model_config
from tests.workload.test_huggingface import _write

_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
_TEXT |= {"num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 88}
_TEXT |= {"max_position_embeddings": 64}
SMALL: dict[str, Any] = {
    "text_config": {**_TEXT, "cross_attention_layers": [1, 3]},
    "vision_config": {
        **{"hidden_size": 32, "num_hidden_layers": 3, "num_global_layers": 1},
        **{"attention_heads": 2, "intermediate_size": 48, "image_size": 16, "patch_size": 4},
        **{"max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2]]},
        **{"intermediate_layers_indices": [0, 2], "vision_output_dim": 96},
    },
}
SAMPLES, IMAGES, TOKENS = 3, 2, 17
LARGE: dict[str, Any] = {
    **{"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64},
    **{"num_hidden_layers": 100, "cross_attention_layers": [*range(3, 100, 5)]},
}


@pytest.fixture
def config(tmp_path: Path) -> TransformerConfig:
    """Return a small model with two images of two tiles per sample."""
    return model_config(_write(tmp_path, model_type="mllama", **SMALL) + "+images2")


@cache
def _capture(config: TransformerConfig, degree: int = 1, *, split: bool = False) -> WorkloadVariant:
    return capture_transformer(
        config, tensor_parallel=degree, microbatch=SAMPLES, sequence_parallel=split
    )


def _layers(config: TransformerConfig, *degree: int, split: bool = False) -> dict[str, Layer]:
    return {layer.name: layer for layer in _capture(config, *degree, split=split).layers}


@pytest.mark.parametrize(
    ("text", "parameters"), [({}, 10_642_941_475), (LARGE, 88_566_075_963)], ids=["11b", "90b"]
)
def test_parameters_are_those_of_the_releases(
    tmp_path: Path, text: dict[str, Any], parameters: int
) -> None:
    """Llama 3.2 11B and 90B; without images their blocks that attend to these do not run."""
    model = _write(tmp_path, model_type="mllama", text_config=text)
    assert count_parameters(model_config(f"{model}+images1", 8192)) == parameters
    if not text:  # the instructed model, for images of 560 by 560
        larger = _write(tmp_path, model_type="mllama", vision_config={"image_size": 560})
        assert count_parameters(model_config(f"{larger}+images1", 8192)) == 10_670_220_835
        model = _write(tmp_path, model_type="mllama")
        assert count_parameters(model_config(model, 8192)) == 8_030_261_248


def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """All tokens of an image see each other; a block sees those of its sample's images."""
    layers, seen, rows = _layers(config), 2 * TOKENS, SAMPLES * IMAGES * 2 * TOKENS
    linear = 4 * 32 * 32 + 2 * 32 * 48
    block = 2 * rows * linear + 4 * rows * seen * 32
    tokens, inner = SAMPLES * 64, 3 * 64 * 96
    memory = 2 * rows * 2 * 64 * 32  # keys and values of images, two heads of 16
    expected = {
        "image.embedding": 2 * (SAMPLES * IMAGES * 2 * 16) * 48 * 32,
        "image.block": block,
        "image.middle": 0,
        "image.gated_block": block,
        "image.end": 2 * rows * 96 * 64,
        "cross_block": 2 * tokens * (2 * 64 * 64 + inner)
        + memory
        + 4 * tokens * IMAGES * seen * 64,
    }
    assert {name: layers[name].forward.flops for name in expected} == expected
    assert layers["cross_block"].backward.flops > 2 * (expected["cross_block"] - memory)


def test_shards_add_up(config: TransformerConfig) -> None:
    """A group shares out products and heads; norms, gates and tables are whole everywhere."""
    whole, halves = _layers(config), _layers(config, 2)
    for name in ("image.block", "image.gated_block", "cross_block"):
        assert 2 * halves[name].forward.flops == whole[name].forward.flops, name
        assert 2 * halves[name].backward.flops == whole[name].backward.flops, name
    copied = 2 * 64 + 2 * 16 + 2  # norms, norms of heads, gates
    assert (
        2 * (halves["cross_block"].parameters - copied) == whole["cross_block"].parameters - copied
    )
    split = _layers(config, 2, split=True)
    assert split["cross_block"].forward.flops == halves["cross_block"].forward.flops
    assert 2 * split["cross_block"].output_bytes == halves["cross_block"].output_bytes


def test_layers_stand_where_they_belong(config: TransformerConfig) -> None:
    """The parameters are those of all layers; features and images skip to their readers."""
    variant = _capture(config)
    names = variant.names
    own = [variant.layers[kind] for _, kind in variant.nodes]
    assert sum(layer.parameters for layer in own) == count_parameters(config)
    skips = {(names[a], names[b]) for a, b, _ in variant.edges if b != a + 1}
    assert skips == {
        ("image.block.0", "image.end"),
        ("image.block.2", "image.end"),
        ("image.end", "block.1"),
        ("image.end", "block.3"),
    }
    assert [names[i] for i in range(7)] == [
        *("image.embedding", "image.block.0", "image.block.1", "image.block.2"),
        *("image.middle", "image.block.3", "image.end"),
    ]


def test_it_trains_on_a_pipeline(tmp_path: Path) -> None:
    """Stages pass images on; a sequence that is shared cannot be."""
    model = _write(tmp_path, model_type="mllama", **SMALL) + "+images1"
    training = po.Training(16, 2, optimizer="adam", recompute="full")
    result = po.evaluate(model, "h100", "dgx-h100", training, devices=4, placement="2x2x1")
    assert result.feasible and 0.0 < result.mfu < 1.0
    with pytest.raises(InputError, match="self-attention on text"):
        load_workload(model, context_parallel=(2,))


@pytest.mark.parametrize(
    ("key", "value"),
    [("vision_output_dim", 100), ("intermediate_layers_indices", [0, 3]), ("image_size", 18)],
)
def test_towers_that_contradict_themselves_are_refused(
    tmp_path: Path, key: str, value: object
) -> None:
    """A feature behind the first stack, or a width that no blocks make."""
    vision = {**SMALL["vision_config"], key: value}
    model = _write(tmp_path, model_type="mllama", **{**SMALL, "vision_config": vision})
    with pytest.raises(InputError):
        model_config(f"{model}+images1")

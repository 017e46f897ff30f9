"""Towers of images before language models (Qwen-VL, Gemma 3, Llama 4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.workload.capture.transformer import count_parameters
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.graph import Layer, WorkloadVariant
from phaze_opt.workload.summary import collective_bytes
from phaze_opt.workload.zoo import load_workload, model_config, tensor_degrees
from tests.workload.blocks import captured_variant
from tests.workload.test_huggingface import _write

_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
_TEXT |= {"num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 96, "head_dim": 16}
_TEXT |= {"max_position_embeddings": 64}
_QWEN = {"hidden_size": 32, "depth": 4, "num_heads": 2, "intermediate_size": 48, "patch_size": 4}
VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {**_QWEN, "embed_dim": 32},
    "qwen2_5_vl": {**_QWEN, "window_size": 8, "fullatt_block_indexes": [3]},
    "qwen3_vl": {**_QWEN, "num_position_embeddings": 9, "deepstack_visual_indexes": [1, 3]},
    "gemma3": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 48, "image_size": 32, "patch_size": 4},
    },
    "llama4": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 48, "image_size": 32, "patch_size": 4},
        **{"projector_input_dim": 40, "projector_output_dim": 24},
    },
}
_LLAMA4 = {"num_local_experts": 4, "intermediate_size_mlp": 96, "attention_chunk_size": 32}
IMAGES, EDGE, PATCHES, MERGED = 2, 32, 64, 16


def _model(family: str, folder: Path, added: str = "+images2x32") -> str:
    text = {**_TEXT, **(_LLAMA4 if family == "llama4" else {})}
    own = {"text_config": text, "vision_config": VISION[family], "mm_tokens_per_image": MERGED}
    return _write(folder, model_type=family, **own) + added


@pytest.fixture
def config(family: str, tmp_path: Path) -> TransformerConfig:
    """Return the small configuration of a family, with two images per sample."""
    return model_config(_model(family, tmp_path))


families = pytest.mark.parametrize("family", VISION)


def _capture(config: TransformerConfig, degree: int = 1, *, split: bool = False) -> WorkloadVariant:
    return captured_variant(config, degree, split=split, samples=3)


def _layers(config: TransformerConfig, *degree: int, split: bool = False) -> dict[str, Layer]:
    return {layer.name: layer for layer in _capture(config, *degree, split=split).layers}


@families
def test_flops_are_the_closed_form(config: TransformerConfig) -> None:
    """Patches, blocks and projection of six images of three samples; text is as without."""
    tower, shape = config.images, config.projector
    assert tower and shape and config.image_tokens_in_text == IMAGES * MERGED
    layers, images = _layers(config), 3 * IMAGES
    hidden, tokens = tower.hidden, tower.sequence
    patches = PATCHES * hidden * tower.channels * tower.patch_size**2
    assert layers["image.embedding"].forward.flops == 2 * images * patches
    matrices = 3 if tower.activation == "swiglu" else 2
    linear = 4 * hidden**2 + matrices * hidden * tower.inner
    block = layers["image.block"]
    assert block.forward.flops == 2 * images * tokens * (linear + 2 * tokens * hidden)
    if tower.windows:
        near = layers["image.window_block"]
        assert near.forward.flops == 2 * images * tokens * (linear + 2 * 4 * hidden)
    wide = hidden * (1 if shape.pools else shape.merge)
    pairs = zip((wide, *shape.widths[:-1]), shape.widths, strict=True)
    projected = 2 * images * MERGED * sum(a * b for a, b in pairs)
    assert layers["image.end"].forward.flops == projected
    alone = _layers(_text_only(config))
    for name, layer in alone.items():
        assert layers[name].forward.flops == layer.forward.flops
        assert layers[name].parameters == layer.parameters


def _text_only(config: TransformerConfig) -> TransformerConfig:
    return replace(config, images=UNSET, projector=UNSET)


@families
def test_parameters_are_those_of_the_layers(config: TransformerConfig) -> None:
    """The total is that of the captured layers, with the word embedding once."""
    variant = _capture(config)
    layers = [variant.layers[index] for _, index in variant.nodes]
    tied = [layer.tied_parameters for layer in layers]
    total = sum(layer.parameters for layer in layers) - sum(tied) + max(tied)
    assert total == count_parameters(config)


@families
@pytest.mark.parametrize("split", [False, True])
def test_shards_add_up(config: TransformerConfig, split: bool) -> None:
    """Blocks of the tower are split as others, on whole images; projections are repeated."""
    whole, shard = _layers(config), _layers(config, 2, split=split)
    for name in whole:
        assert 2 * shard[name].forward.flops == whole[name].forward.flops or "embedding" in name
    block = shard["image.block"]
    assert block.output_bytes == whole["image.block"].output_bytes
    assert collective_bytes(block.forward).keys() == {"all_reduce"}
    assert shard["image.end"].parameters == whole["image.end"].parameters
    rows = shard["embedding"].output_bytes * (2 if split else 1)
    assert rows == whole["embedding"].output_bytes


def test_blocks_of_text_read_deep_results_of_the_tower(tmp_path: Path) -> None:
    """The embedding reads the tower's end, the first blocks what the others project."""
    variant = _capture(model_config(_model("qwen3_vl", tmp_path)))
    names = [name for name, _ in variant.nodes]
    edges = {(names[source], names[reader]) for source, reader, _ in variant.edges}
    assert all(source < reader for source, reader, _ in variant.edges)
    assert edges >= {("image.block.3", "image.end"), ("image.end", "embedding")}
    for place, block in enumerate((1, 3)):
        deep = f"image.deepstack.{place}"
        assert edges >= {(f"image.block.{block}", deep), (deep, f"block.{place}")}
    assert ("embedding", "block.0") in edges and ("block.2", "head") in edges
    kinds = [variant.layers[index].name for _, index in variant.nodes]
    assert kinds[-4:] == ["block_with_images", "block_with_images", "block", "head"]
    assert len(edges) == len(names) - 1 + 2 + 2 - 2


@families
def test_it_trains(family: str, tmp_path: Path) -> None:
    """Over a pipeline and tensor-parallel groups; more images take longer."""
    seconds = []
    for added in ("", "+images1x32", "+images2x32"):
        model = _model(family, tmp_path, added)
        assert tensor_degrees(model) == (1, 2)
        training = po.Training(8, optimizer="adam", sequence_parallel=True)
        found = po.evaluate(model, "h100", "dgx-h100", training, (2, 1, 2), devices=4)
        assert found.time_per_batch_s is not None and found.mfu is not None and found.mfu < 1
        seconds.append(found.time_per_batch_s)
    assert seconds == sorted(seconds)


PUBLISHED = {
    "qwen3-vl-8b": ("qwen3_vl", 8_767_123_696),
    "qwen2.5-vl-7b": ("qwen2_5_vl", 8_292_166_656),
    "qwen2-vl-7b": ("qwen2_vl", 8_291_375_616),
    "gemma-3-4b": ("gemma3", 4_300_079_472),
    "llama-4-scout": ("llama4", 108_641_793_536),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_parameters(name: str, tmp_path: Path) -> None:
    """Tower, projector and language model are those of the released weights, exactly."""
    family, total = PUBLISHED[name]
    text: dict[str, Any] = {"hidden_size": 3584, "intermediate_size": 18944}
    text |= {"num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28}
    if family == "qwen3_vl":
        text = {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32}
        text |= {"num_key_value_heads": 8, "num_hidden_layers": 36}
    elif family == "gemma3":
        text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
        text |= {"sliding_window": 1024}
    elif family == "llama4":
        text = {"intermediate_size": 8192}
    else:
        text |= {"vocab_size": 152064, "max_position_embeddings": 32768}
    model = _write(tmp_path, model_type=family, text_config=text, vision_config={})
    assert count_parameters(model_config(f"{model}+images1", 4096)) == total


@pytest.mark.parametrize(
    ("family", "added", "words"),
    [
        ("gemma3", "+images1x64", "only images of 32 by 32, not of 64"),
        ("qwen2_vl", "+images1x30", "a multiple of the patch_size of 4"),
        ("qwen2_vl", "+images1x36", "of which 4 become one"),
        ("qwen2_vl", "+images5x32", "5 images have 80 tokens, but sequence is 64"),
    ],
)
def test_images_that_do_not_fit_are_refused(
    family: str, added: str, words: str, tmp_path: Path
) -> None:
    """One sentence says what does not go together."""
    with pytest.raises(InputError, match=words):
        model_config(_model(family, tmp_path, added))


def test_models_without_a_tower_have_no_images(tmp_path: Path) -> None:
    """Names and shapes have none, and towers that cannot be read are refused by name."""
    with pytest.raises(InputError, match="only the configuration of a model of images and text"):
        load_workload("llama3-8b+images2")
    llava = _write(tmp_path, model_type="llava", text_config=_TEXT)
    with pytest.raises(InputError, match='model_type is "llava"'):
        model_config(f"{llava}+images1")


def test_qwen3_5_has_its_parameters(tmp_path: Path) -> None:
    """Those of Qwen3.5-0.8B-Base: a hybrid with a tower and a layer that predicts ahead."""
    text = {"model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584}
    text |= {"num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 24}
    text |= {"linear_num_value_heads": 16}
    vision = {"depth": 12, "hidden_size": 768, "intermediate_size": 3072, "num_heads": 12}
    model = _write(
        tmp_path,
        model_type="qwen3_5",
        tie_word_embeddings=True,
        text_config=text,
        vision_config={**vision, "out_hidden_size": 1024},
    )
    assert count_parameters(model_config(f"{model}+images1+mtp", 4096)) == 873_438_784

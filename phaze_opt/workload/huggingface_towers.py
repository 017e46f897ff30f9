"""How the configurations of speech and text, and of images beside text, are read.

A table as `phaze_opt.workload.huggingface_families` has it, with the defaults of the classes
(transformers 4.57). CLIP's ``quick_gelu``, a sigmoid times its argument, is counted as a GELU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phaze_opt.workload.huggingface_families import GELU, Family
from phaze_opt.workload.huggingface_fields import (
    Plain,
    as_json,
    inner_configuration,
    refusal,
    whole_number,
)

_GELU = {**GELU, "quick_gelu": "gelu"}


def _whisper(plain: Plain) -> dict[str, Any]:
    """Compute the encoder, as wide as the decoder, and the biases, which keys lack."""
    if plain.get("activation_dropout") not in (None, 0):
        raise refusal("activation_dropout", plain["activation_dropout"], "0.0")
    encoder = {
        "layers": whole_number(plain, "encoder_layers", 4),
        "hidden": whole_number(plain, "d_model", 384),
        "heads": whole_number(plain, "encoder_attention_heads", 6),
        "feed_forward": whole_number(plain, "encoder_ffn_dim", 1536),
        "sequence": whole_number(plain, "max_source_positions", 1500),
        "channels": whole_number(plain, "num_mel_bins", 80),
        "vocabulary": 1,
        "causal": False,
        "key_bias": False,
        "dropout": plain.get("dropout") or 0.0,
        "attention_dropout": plain.get("attention_dropout") or 0.0,
    }
    return {"encoder": encoder, "key_bias": False}


def _clip(plain: Plain) -> dict[str, Any]:
    """Compute both towers from their configurations inside."""
    text, images = (inner_configuration(plain, name) for name in ("text_config", "vision_config"))
    tower = {
        **_stack(images, {"hidden": 768, "heads": 12, "feed_forward": 3072}, "quick_gelu"),
        **_patches(images, 32),
        "vocabulary": whole_number(plain, "projection_dim", 512),
        "embedding_norm": True,
        "causal": False,
    }
    tower["sequence"] = tower["sequence"] + 1  # a token for the class
    return {
        **_stack(text, {"hidden": 512, "heads": 8, "feed_forward": 2048}, "quick_gelu"),
        "sequence": whole_number(text, "max_position_embeddings", 77),
        "vocabulary": whole_number(text, "vocab_size", 49408),
        "tied": False,
        "images": tower,
    }


def _siglip(plain: Plain) -> dict[str, Any]:
    """Compute both towers from their configurations inside; all text tokens see each other."""
    text, images = (inner_configuration(plain, name) for name in ("text_config", "vision_config"))
    usual = {"hidden": 768, "heads": 12, "feed_forward": 3072}
    tower = _stack(images, usual, "gelu_pytorch_tanh")
    own = _stack(text, usual, "gelu_pytorch_tanh")
    projected = whole_number(text, "projection_size", own["hidden"])
    if projected != tower["hidden"]:
        raise refusal("projection_size", projected, f"the image's width of {tower['hidden']}")
    alike = {"causal": False, "pools": True, "vocabulary": tower["hidden"]}
    return {
        **own,
        "sequence": whole_number(text, "max_position_embeddings", 64),
        "vocabulary": whole_number(text, "vocab_size", 32000),
        "causal": False,
        "tied": False,
        "images": {**tower, **_patches(images, 16), **alike},
    }


def _patches(plain: Plain, usual: int) -> dict[str, Any]:
    """Return the fields of an image's patches, whose tokens are without one for the class."""
    edge, patch = whole_number(plain, "image_size", 224), whole_number(plain, "patch_size", usual)
    if not 1 <= patch <= edge:
        raise refusal("patch_size", patch, f"a size from 1 to the image_size of {edge}")
    return {
        "image_size": edge,
        "patch_size": patch,
        "channels": whole_number(plain, "num_channels", 3),
        "sequence": (edge // patch) ** 2,
    }


def _stack(plain: Plain, usual: Mapping[str, int], activation: str) -> dict[str, Any]:
    """Return the fields of one of two towers, with some defaults."""
    activation = plain.get("hidden_act") or activation
    if activation not in _GELU:
        raise refusal("hidden_act", activation, ", ".join(map(as_json, _GELU)))
    keys = {
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "feed_forward": "intermediate_size",
    }
    return {
        **{name: whole_number(plain, key, usual[name]) for name, key in keys.items()},
        "layers": whole_number(plain, "num_hidden_layers", 12),
        "dropout": 0.0,
        "attention_dropout": plain.get("attention_dropout") or 0.0,
        "embedding_dropout": False,
    }


TOWER_FAMILIES: Mapping[str, Family] = {
    "whisper": Family(
        keys={
            "layers": ("decoder_layers", 4),
            "hidden": ("d_model", 384),
            "heads": ("decoder_attention_heads", 6),
            "feed_forward": ("decoder_ffn_dim", 1536),
            "sequence": ("max_target_positions", 448),
            "vocabulary": ("vocab_size", 51865),
            "dropout": ("dropout", 0.0),
            "attention_dropout": ("attention_dropout", 0.0),
            "tied": ("tie_word_embeddings", True),
        },
        activation=("activation_function", "gelu"),
        activations=_GELU,
        architectures=("WhisperForConditionalGeneration", "WhisperModel"),
        only={
            "is_encoder_decoder": True,
            "scale_embedding": False,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
            "apply_spec_augment": False,
        },
        synonyms={"hidden_size": "d_model", "num_hidden_layers": "encoder_layers"},
        computed=_whisper,
    ),
    "clip": Family(
        keys={},
        activation=("hidden_act", "quick_gelu"),
        activations=_GELU,
        architectures=("CLIPModel",),
        computed=_clip,
    ),
    "siglip": Family(
        keys={},
        activation=("hidden_act", "gelu_pytorch_tanh"),
        activations=_GELU,
        architectures=("SiglipModel",),
        computed=_siglip,
    ),
}
"""By ``model_type``."""

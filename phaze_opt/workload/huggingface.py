"""The shape of a model from its Hugging Face ``config.json``; nothing is imported or downloaded.

A key that changes operators or shapes is either read into `TransformerConfig` or refused by name
(`huggingface_families` says how). Ignored are keys that change neither: epsilons, numbers of
special tokens, initial values, ``rope_theta``, ``rope_scaling``, ``use_cache``, and number formats,
because training is in bf16 unless said otherwise.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from phaze_opt.codec import from_builtins, from_json, read_file
from phaze_opt.errors import InputError, PhazeError, unknown_name
from phaze_opt.paths import look
from phaze_opt.workload.config import TransformerConfig
from phaze_opt.workload.huggingface_deepseek import DEEPSEEK_FAMILIES
from phaze_opt.workload.huggingface_dense import DENSE_FAMILIES
from phaze_opt.workload.huggingface_diffusion import DIFFUSION_FAMILIES
from phaze_opt.workload.huggingface_encoders import ENCODER_FAMILIES
from phaze_opt.workload.huggingface_experts import EXPERT_FAMILIES
from phaze_opt.workload.huggingface_families import Family
from phaze_opt.workload.huggingface_fields import (
    CAPTURE_IT,
    Plain,
    as_json,
    refusal,
    whole_number,
)
from phaze_opt.workload.huggingface_hybrids import HYBRID_FAMILIES
from phaze_opt.workload.huggingface_images import AskedImages, image_fields
from phaze_opt.workload.huggingface_towers import TOWER_FAMILIES

_ONLY: Plain = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
}
"""Keys of every family with the only value that can be read, where the family has no other."""

_NULL_IS_NONE = ("kv_heads", "head_elements", "attention_softcap", "logit_softcap")
"""Fields that null sets to zero, whatever the default."""

FAMILIES: Mapping[str, Family] = {
    **DENSE_FAMILIES,
    **ENCODER_FAMILIES,
    **EXPERT_FAMILIES,
    **DEEPSEEK_FAMILIES,
    **HYBRID_FAMILIES,
    **TOWER_FAMILIES,
    **DIFFUSION_FAMILIES,
}
"""How to read the configurations of every ``model_type``, or ``_class_name`` of diffusers."""

_CLASS = "_class_name"

_WITH_TEXT = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "mistral3": "mistral",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "kimi_k2",
    "llava": "llama",
    "llava_next": "llama",
    "paligemma": "gemma",
    "internvl": "qwen2",
    "idefics3": "llama",
    "smolvlm": "llama",
    "aya_vision": "cohere2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
}
"""Models of images and text that hold the configuration of their language model.

By ``model_type``: that of the language model where it does not state its own.
"""

_TEXT_NAMES = {
    "qwen2_5_vl_text": "qwen2_vl_text",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
}
"""Names of language models inside others that have the shape of a family with another name."""

_PREDICTION_LAYERS = ("num_nextn_predict_layers", "num_mtp_modules")
"""Keys of the number of layers that predict further ahead (DeepSeek-V3 and GLM-4.5, MiniMax-M2)."""

_NULL = b"null"
_log = logging.getLogger(__name__)


def is_huggingface_config(path: Path) -> bool:
    """Say whether a file is a configuration, by its content; a broken or missing one is not."""
    try:
        raw = msgspec.json.decode(read_file(path, "model file"), type=dict[str, msgspec.Raw])
    except (PhazeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    stated = {
        key
        for key in ("model_type", _CLASS, "schema_version")
        if bytes(raw.get(key, _NULL)) != _NULL
    }
    return bool(stated) and "schema_version" not in stated


def read_huggingface_config(
    path: Path, *, predicts_ahead: bool = False, images: AskedImages | None = None
) -> TransformerConfig:
    """Return the shape in a ``config.json``, or in the folder that holds one.

    Parameters
    ----------
    path
        Of the file or folder.
    predicts_ahead
        Whether to read the layers that predict tokens further ahead: as many as the configuration
        states, one where it states none.
    images
        Of a sample, which go through the tower of a model of images and text; only its language
        model is read where there are none.

    Raises
    ------
    NotFoundError
        If there is no file.
    InputError
        If the file is broken, is of an unknown model type, or has a key whose value
        `TransformerConfig` cannot express.
    """
    status = look(path, f"The Hugging Face configuration at {path}")
    if status is not None and stat.S_ISDIR(status.st_mode):
        path = path / "config.json"
    what = f"Hugging Face configuration at {path}"
    plain = from_json(read_file(path, "Hugging Face configuration"), dict[str, Any], what)
    plain.setdefault("model_type", plain.get(_CLASS))
    if plain["model_type"] is None:
        raise InputError(f"The {what} has no model_type.")
    whole = plain
    plain = _language_model(plain, what, only=images is None)
    model_type = plain["model_type"]
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        error = unknown_name("model_type", model_type, {*FAMILIES, *_WITH_TEXT})
        raise InputError(f"{str(error).rstrip('.')}; for another, {CAPTURE_IT}.")
    family = FAMILIES[model_type]
    for name, key in family.synonyms.items():
        if plain.get(name) is not None:
            plain[key] = plain[name]
    _refuse_other_values(plain, family)
    fields = _fields(plain, family)
    if predicts_ahead:
        counts = (whole_number(plain, key, 0) for key in _PREDICTION_LAYERS)
        fields["prediction_layers"] = max(*counts, 1)
    fields = _plainest(fields)
    if images is not None:
        fields |= image_fields(whole, images, fields["hidden"])
    return from_builtins(fields, TransformerConfig, what)


def _language_model(plain: dict[str, Any], what: str, *, only: bool) -> dict[str, Any]:
    """Return the configuration of the language model inside one of images and text."""
    inner = _WITH_TEXT.get(str(plain["model_type"]))
    if inner is None:
        return plain
    text = plain.get("text_config")
    if text is None:
        # Configurations of older versions have the keys of the language model beside the others.
        text = {key: value for key, value in plain.items() if key != "architectures"}
    if not isinstance(text, Mapping):
        raise refusal("text_config", text, "a configuration")
    if only:
        _log.warning(
            "The %s is of images and text: only its language model is read, and every token is "
            "taken for one of text. Left out are the vision tower and the projector; +images1 "
            "behind the model's name adds them, with one image per sample.",
            what,
        )
    tied = {"tie_word_embeddings": plain.get("tie_word_embeddings")}
    own = text.get("model_type") if "text_config" in plain else None
    return {**tied, **text, "model_type": _TEXT_NAMES.get(str(own), own or inner)}


def _fields(plain: Plain, family: Family) -> dict[str, Any]:
    """Return the fields of `TransformerConfig`; null stands for a default of zero."""
    fields = dict(family.fixed)
    for name, (key, default) in family.keys.items():
        value = plain.get(key, default)
        if value is None and name in _NULL_IS_NONE:
            value = 0
        elif value is None and (default == 0 or name == "tied"):
            value = default
        fields[name] = value
    key, activation = family.activation
    fields["activation"] = family.activations[plain.get(key) or activation]
    return fields | family.computed(plain)


def _plainest(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out sizes that are what they would be without being stated.

    Equal shapes are then equal, however they were written.
    """
    hidden, heads = fields["hidden"], fields["heads"]
    if isinstance(hidden, int) and isinstance(heads, int):
        implied = {"kv_heads": heads, "feed_forward": 4 * hidden, "embedding_size": hidden}
        for name, value in implied.items():
            if fields.get(name) == value:
                fields[name] = 0
        if fields.get("head_elements", 0) == hidden / max(1, heads):
            fields["head_elements"] = 0
    return fields


def _refuse_other_values(plain: Plain, family: Family) -> None:
    """Refuse keys whose value changes operators or shapes in a way that is not captured."""
    for key, only in {**_ONLY, **family.only}.items():
        if plain.get(key) not in (None, only):
            raise refusal(key, plain[key], as_json(only))
    key, activation = family.activation
    given = plain.get(key) or activation
    if not isinstance(given, str) or given not in family.activations:
        raise refusal(key, given, ", ".join(map(as_json, family.activations)))
    classes = plain.get("architectures") or []
    known = {name.lower() for name in family.architectures}
    if not isinstance(classes, list) or not {str(name).lower() for name in classes} <= known:
        raise refusal("architectures", classes, ", ".join(map(as_json, family.architectures)))

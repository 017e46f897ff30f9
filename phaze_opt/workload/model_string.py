"""A transformer's shape as a string: ``gpt:layers=24,...``, ``llama:...`` and ``moe:...``."""

from __future__ import annotations

from typing import Any

from phaze_opt.checked import shown
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.config import LLAMA, TransformerConfig
from phaze_opt.workload.config_checks import MOST_LAYERS
from phaze_opt.workload.experts import Experts, LatentAttention
from phaze_opt.workload.sparse_attention import Indexer

_FAMILIES: dict[str, dict[str, Any]] = {"gpt": {}, "llama": LLAMA, "moe": LLAMA}
"""Fields of each family that differ from the defaults of `TransformerConfig`, which are GPT-2's."""

_REQUIRED = {
    "gpt": ("layers", "hidden", "heads", "sequence", "vocab"),
    "llama": ("layers", "hidden", "heads", "ffn", "sequence", "vocab"),
    "moe": ("layers", "hidden", "heads", "sequence", "vocab", "experts", "top_k", "expert_ffn"),
}
_OPTIONAL = {
    "gpt": ("ffn", "attention", "dropout"),
    "llama": ("kv_heads", "head_dim", "attention", "dropout", "kernels", "prediction_layers"),
    "moe": (
        *("kv_heads", "head_dim", "attention", "dropout", "kernels", "prediction_layers"),
        *("ffn", "dense_layers", "shared", "groups", "top_groups"),
        *("kv_rank", "q_rank", "nope_dim", "rope_dim", "v_dim"),
        *("index_heads", "index_dim", "index_keys"),
    ),
}
_EXPERTS = {"experts": "count", "top_k": "top_k", "expert_ffn": "feed_forward"}
_LATENT = {
    "kv_rank": "kv_rank",
    "q_rank": "query_rank",
    "nope_dim": "plain",
    "rope_dim": "rotary",
    "v_dim": "value",
}
_INDEXER = {"index_heads": "heads", "index_dim": "width", "index_keys": "top_k"}
"""Fields of `Experts`, of `LatentAttention` and of `Indexer` by key."""
_FIELD_OF_KEY = {"vocab": "vocabulary", "ffn": "feed_forward", "head_dim": "head_elements"}


def is_model_string(model: str) -> bool:
    """Say whether a model is named by a family and sizes."""
    return model.partition(":")[0] in _FAMILIES and ":" in model


def parse_model_string(model: str) -> TransformerConfig:
    """Return the shape that a model string describes.

    Parameters
    ----------
    model
        ``gpt:layers=..,hidden=..,heads=..,sequence=..,vocab=..`` with optional ``ffn``,
        ``attention`` and ``dropout``; ``llama:`` with ``ffn`` and optional
        ``kv_heads``, ``head_dim``, ``kernels`` and ``prediction_layers`` (of tokens further
        ahead); ``moe:`` as ``llama:`` with ``experts``,
        ``top_k`` and ``expert_ffn``, and optional ``shared`` experts of the same width,
        ``dense_layers`` at the start, of width ``ffn``, ``groups`` of experts from ``top_groups``
        of which those of a token are, and latent attention: ``kv_rank``, ``nope_dim``,
        ``rope_dim``, ``v_dim`` and perhaps ``q_rank``, with perhaps an indexer of its keys:
        ``index_heads``, ``index_dim`` and ``index_keys``, how many it chooses.

    Raises
    ------
    InputError
        If a key is unknown, missing or given twice, or a value is not allowed.
    """
    family, _, rest = model.partition(":")
    allowed = _REQUIRED[family] + _OPTIONAL[family]
    fields: dict[str, Any] = dict(_FAMILIES[family])
    given: set[str] = set()
    for item in rest.split(","):
        key, equals, text = (part.strip() for part in item.partition("="))
        if key not in allowed:
            raise unknown_name(f"key of a {family}: model", key, allowed)
        if not equals or key in given:
            raise InputError(f"The model string needs {key}=VALUE once, but has {item.strip()!r}.")
        given.add(key)
        fields[_FIELD_OF_KEY.get(key, key)] = _parse_value(key, text)
    missing = [key for key in _REQUIRED[family] if key not in given]
    if missing:
        raise InputError(f"The model {model!r} lacks {', '.join(missing)}.")
    if "dropout" in given:
        fields["attention_dropout"] = fields["dropout"]
    if family == "moe":
        fields = _with_experts(fields, given, model)
    return TransformerConfig(**fields)


def _with_experts(fields: dict[str, Any], given: set[str], model: str) -> dict[str, Any]:
    """Put the keys of experts and of latent attention where `TransformerConfig` has them."""
    dense, shared = fields.pop("dense_layers", 0), fields.pop("shared", 0)
    if dense and "ffn" not in given:
        raise InputError(f"The model {model!r} lacks ffn, the width of its dense_layers.")
    most = min(fields["layers"], MOST_LAYERS)
    if not 0 <= dense <= most:
        raise InputError(
            f"dense_layers is {shown(dense)}, but it must be between 0 and the {most} layers."
        )
    routed = {name: fields.pop(key) for key, name in _EXPERTS.items()}
    routed |= {key: fields.pop(key) for key in ("groups", "top_groups") if key in given}
    fields["experts"] = Experts(
        **routed, shared=shared * routed["feed_forward"], dense_layers=tuple(range(dense))
    )
    latent = {name: fields.pop(key) for key, name in _LATENT.items() if key in given}
    if latent:
        missing = [key for key in _LATENT if key not in given and key != "q_rank"]
        if missing:
            raise InputError(f"The latent attention of {model!r} lacks {', '.join(missing)}.")
        fields["latent"] = LatentAttention(**latent)
    indexer = {name: fields.pop(key) for key, name in _INDEXER.items() if key in given}
    if indexer:
        missing = [key for key in _INDEXER if key not in given]
        if missing:
            raise InputError(f"The indexer of {model!r} lacks {', '.join(missing)}.")
        fields["indexer"] = Indexer(**indexer)
    return fields


def _parse_value(key: str, text: str) -> object:
    """Return the value of a key: a word, a probability or a whole number."""
    if key in ("attention", "kernels"):
        return text
    try:
        return float(text) if key == "dropout" else int(text)
    except ValueError:
        kind = "a number" if key == "dropout" else "a whole number"
        raise InputError(f"{key} is {text!r}, but it must be {kind}.") from None

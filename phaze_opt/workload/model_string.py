"""A transformer's shape as a string: ``gpt:layers=24,hidden=1024,...`` and ``llama:...``."""

from __future__ import annotations

from typing import Any

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.config import LLAMA, TransformerConfig

_FAMILIES: dict[str, dict[str, Any]] = {"gpt": {}, "llama": LLAMA}
"""Fields of each family that differ from the defaults of `TransformerConfig`, which are GPT-2's."""

_REQUIRED = {
    "gpt": ("layers", "hidden", "heads", "sequence", "vocab"),
    "llama": ("layers", "hidden", "heads", "ffn", "sequence", "vocab"),
}
_OPTIONAL = {
    "gpt": ("ffn", "attention", "dropout"),
    "llama": ("kv_heads", "head_dim", "attention", "dropout", "kernels"),
}
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
        ``kv_heads``, ``head_dim`` and ``kernels``.

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
    return TransformerConfig(**fields)


def _parse_value(key: str, text: str) -> object:
    """Return the value of a key: a word, a probability or a whole number."""
    if key in ("attention", "kernels"):
        return text
    try:
        return float(text) if key == "dropout" else int(text)
    except ValueError:
        kind = "a number" if key == "dropout" else "a whole number"
        raise InputError(f"{key} is {text!r}, but it must be {kind}.") from None

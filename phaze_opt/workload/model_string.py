"""Any GPT or Llama shape as a string: ``gpt:layers=24,hidden=1024,...`` and ``llama:...``."""

from __future__ import annotations

from typing import Any

from phaze_opt.errors import InputError, unknown_name
from phaze_opt.workload.config import TransformerConfig

GPT: dict[str, Any] = {"attention": "eager", "dropout": 0.1, "attention_dropout": 0.1}
"""Beside the defaults of `TransformerConfig`: GPT-2's."""

LLAMA: dict[str, Any] = {
    "norm": "rms_norm",
    "activation": "swiglu",
    "positions": "rotary",
    "bias": False,
    "tied": False,
    "attention": "flash",
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
"""What makes a transformer a Llama (Touvron et al. 2023)."""

_FAMILIES = {"gpt": GPT, "llama": LLAMA}
_REQUIRED = {
    "gpt": ("layers", "hidden", "heads", "sequence", "vocab"),
    "llama": ("layers", "hidden", "heads", "ffn", "sequence", "vocab"),
}
_OPTIONAL = {
    "gpt": ("ffn", "attention", "dropout"),
    "llama": ("kv_heads", "attention", "dropout"),
}
_FIELDS = {"vocab": "vocabulary", "ffn": "feed_forward"}


def is_model_string(model: str) -> bool:
    """Say whether a model is given as a family and its sizes."""
    return model.partition(":")[0] in _FAMILIES and ":" in model


def parse_model_string(model: str) -> TransformerConfig:
    """Return the shape that a model string describes.

    Parameters
    ----------
    model
        ``gpt:layers=..,hidden=..,heads=..,sequence=..,vocab=..`` with optional ``ffn``,
        ``attention`` and ``dropout``; ``llama:`` with ``ffn`` and optional ``kv_heads``.

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
        fields[_FIELDS.get(key, key)] = _value(key, text)
    missing = [key for key in _REQUIRED[family] if key not in given]
    if missing:
        raise InputError(f"The model {model!r} lacks {', '.join(missing)}.")
    if "dropout" in given:
        fields["attention_dropout"] = fields["dropout"]
    return TransformerConfig(**fields)


def _value(key: str, text: str) -> object:
    """Read a value: a word, a probability or a whole number."""
    if key == "attention":
        return text
    try:
        return float(text) if key == "dropout" else int(text)
    except ValueError:
        kind = "a number" if key == "dropout" else "a whole number"
        raise InputError(f"{key} is {text!r}, but it must be {kind}.") from None

"""The shape of a transformer as one frozen dataclass, and its form as a string.

``gpt:layers=24,hidden=1024,...`` and ``llama:...`` are such strings. Nothing here needs torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from phaze_opt.errors import InputError, unknown_name

TENSOR_WIDTHS = (1, 2, 4, 8)
"""Tensor-parallel widths that are considered: up to the devices of one server (Megatron-LM)."""

_VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads a vocabulary that has to be split to a multiple of this times the width."""

_LARGEST_SIZE = 2**24
_MOST_LAYERS = 10_000
"""A larger number is a typing error, and tensors would have more than 2**63 elements."""

_CHOICES = {
    "norm": ("layer_norm", "rms_norm"),
    "norm_position": ("pre", "post"),
    "activation": ("gelu", "relu", "swiglu"),
    "positions": ("learned", "rotary"),
    "attention": ("eager", "flash"),
    "head": ("language_model", "masked_language_model"),
    "kernels": ("fused", "framework"),
}


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer of the BERT, GPT, OPT or Llama family.

    Attributes
    ----------
    layers, hidden, heads
        Blocks, width of the residual stream, attention heads.
    sequence
        Tokens per sample.
    vocabulary
        Rows of the word embedding.
    kv_heads
        Key and value heads (grouped-query attention); 0 means as many as ``heads``.
    head_elements
        Elements of one attention head; 0 means ``hidden / heads``.
    feed_forward
        Inner width of the feed-forward network; 0 means ``4 · hidden``.
    embedding_size
        Width of the word embedding where it differs from ``hidden`` (OPT-350m projects it up before
        the first block and down after the last); 0 means ``hidden``.
    position_rows
        Rows of the learned position table; the table has at least ``sequence`` rows. Rotary
        positions have no table.
    token_types
        Rows of BERT's segment table; 0 for none.
    norm, norm_position
        Kind of normalisation; its place is before each sub-layer, or after the residual sum (BERT,
        OPT-350m).
    embedding_norm, final_norm
        Whether a normalisation follows the embedding (BERT), and whether one follows the last
        block.
    activation
        Activation of the feed-forward network; ``swiglu`` has three matrices, the others two.
    causal
        Whether a token attends only to earlier tokens. The products are still computed in full.
    attention
        ``eager`` writes the scores to memory; ``flash`` is one operator that keeps them on chip.
    dropout
        Probability of dropout after the embedding and after both sub-layers.
    attention_dropout
        Probability of dropout on attention probabilities.
    bias
        Whether linear layers of a block have a bias.
    head
        Language model (GPT, Llama) or BERT's masked language model (a dense layer, GELU and
        normalisation before the vocabulary, which has a bias).
    tied
        Whether the head uses the word embedding's weight.
    kernels
        Whether root-mean-square norms and rotary positions are ``fused`` kernels, or what a
        ``framework`` runs for them where nothing is compiled: casts to fp32 and back around one
        kernel per operator, and shared key and value heads copied for every query head (torchtitan
        without compilation).
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    kv_heads: int = 0
    head_elements: int = 0
    feed_forward: int = 0
    embedding_size: int = 0
    position_rows: int = 0
    token_types: int = 0
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    norm_position: Literal["pre", "post"] = "pre"
    embedding_norm: bool = False
    final_norm: bool = True
    activation: Literal["gelu", "relu", "swiglu"] = "gelu"
    positions: Literal["learned", "rotary"] = "learned"
    causal: bool = True
    attention: Literal["eager", "flash"] = "eager"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    bias: bool = True
    head: Literal["language_model", "masked_language_model"] = "language_model"
    tied: bool = True
    kernels: Literal["fused", "framework"] = "fused"

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            _refuse_outside(name, getattr(self, name), 1)
        for name in ("kv_heads", "head_elements", "feed_forward", "embedding_size"):
            _refuse_outside(name, getattr(self, name), 0)
        for name in ("position_rows", "token_types"):
            _refuse_outside(name, getattr(self, name), 0)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but it must be {' or '.join(allowed)}."
                )
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but it must be at least 0 and below 1."
                )
        if not self.head_elements and self.hidden % self.heads:
            raise InputError(
                f"hidden is {self.hidden}, but it must be a multiple of the {self.heads} heads."
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise InputError(
                f"A head has {self.head_size} elements, but rotary positions need an even number."
            )
        if self.heads % self.key_value_heads:
            raise InputError(
                f"kv_heads is {self.kv_heads}, but it must divide the {self.heads} heads."
            )

    @property
    def head_size(self) -> int:
        """Elements of one attention head."""
        return self.head_elements or self.hidden // self.heads

    @property
    def key_value_heads(self) -> int:
        """Number of key (and of value) heads."""
        return self.kv_heads or self.heads

    @property
    def inner(self) -> int:
        """Inner width of the feed-forward network."""
        return self.feed_forward or 4 * self.hidden

    @property
    def embedding_width(self) -> int:
        """Columns of the word embedding."""
        return self.embedding_size or self.hidden

    @property
    def position_table_rows(self) -> int:
        """Rows of the learned position table: a longer sequence needs a longer table."""
        return max(self.position_rows, self.sequence) if self.positions == "learned" else 0

    def padded_vocabulary(self, width: int) -> int:
        """Return the vocabulary that ``width`` devices share evenly.

        It is padded only where the width does not divide it, to a multiple of ``128 · width`` as
        in Megatron-LM.
        """
        if self.vocabulary % width == 0:
            return self.vocabulary
        multiple = _VOCABULARY_MULTIPLE * width
        return -(-self.vocabulary // multiple) * multiple

    def divides(self, width: int) -> bool:
        """Say whether ``width`` devices share heads and feed-forward network evenly."""
        return math.gcd(self.heads, self.key_value_heads, self.inner) % width == 0

    def require_width(self, width: int, *, sequence_parallel: bool, model: str) -> None:
        """Refuse a tensor-parallel width that does not divide the model.

        Raises
        ------
        InputError
            If the width does not divide the model; the message names the widths that do.
        """
        if width < 1 or not self.divides(width):
            shared = math.gcd(self.heads, self.key_value_heads, self.inner)
            allowed = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
            raise InputError(
                f"{model} cannot be split over {width} devices: its {self.heads} heads, "
                f"{self.key_value_heads} key-value heads and feed-forward width {self.inner} "
                f"have only the common divisors {allowed}."
            )
        if sequence_parallel and self.sequence % width:
            raise InputError(
                f"{model} cannot use sequence parallelism over {width} devices: its sequence of "
                f"{self.sequence} tokens is not a multiple of {width}."
            )

    def widths(self) -> tuple[int, ...]:
        """Return those of `TENSOR_WIDTHS` that divide the model."""
        return tuple(width for width in TENSOR_WIDTHS if self.divides(width))


def _refuse_outside(name: str, value: int, least: int) -> None:
    """Refuse a size that is too small, or larger than that of any model."""
    most = _MOST_LAYERS if name == "layers" else _LARGEST_SIZE
    if not least <= value <= most:
        raise InputError(f"{name} is {value}, but it must be between {least} and {most}.")


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
"""Fields of every Llama model (Touvron et al. 2023)."""

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

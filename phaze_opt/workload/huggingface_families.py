"""How configurations of Hugging Face are read: `Family`, a row of a table for each ``model_type``.

The tables stand in modules beside this one; here is what several of them share. A configuration
leaves out the keys that have the default values of its class, so the defaults of the classes
(transformers 4.57) stand in the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phaze_opt.workload.config import LLAMA
from phaze_opt.workload.huggingface_fields import Plain

GELU = dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu")
GELU_OR_RELU = {**GELU, "relu": "relu"}
GATED = {"silu": "swiglu", "swish": "swiglu", **dict.fromkeys(GELU, "geglu")}


@dataclass(frozen=True)
class Family:
    """How the configurations of one ``model_type`` are read.

    Attributes
    ----------
    keys
        By field of `TransformerConfig`: the key in the configuration, and its default.
    activation
        Key of the activation and its default.
    activations
        By name in the configuration: the activation of `TransformerConfig`.
    architectures
        Model classes that have the captured head, or no head. The captured head is taken where the
        configuration names no class.
    only
        Keys with the only value that can be read, beside those of every family.
    fixed
        Fields of `TransformerConfig` that all models of the family have.
    synonyms
        Other names of keys that the configuration class accepts.
    computed
        Returns the fields that hang on several keys.
    """

    keys: Mapping[str, tuple[str, object]]
    activation: tuple[str, str]
    activations: Mapping[str, str]
    architectures: tuple[str, ...]
    only: Plain = field(default_factory=dict)
    fixed: Plain = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    computed: Callable[[Plain], dict[str, Any]] = lambda plain: {}


NO_WINDOW: Plain = {"sliding_window": None}


def llama_keys(
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int | None,
    vocabulary: int,
    sequence: int,
    *,
    kv_heads: int = 0,
    head_elements: int = 0,
    tied: bool = False,
) -> dict[str, tuple[str, object]]:
    """Return the keys that language models share since Llama, with the defaults of a class.

    Parameters
    ----------
    layers, hidden, heads, feed_forward, vocabulary, sequence, kv_heads, head_elements, tied
        Defaults of the fields of these names of `phaze_opt.workload.config.TransformerConfig`;
        ``feed_forward`` is ``None`` where only experts have an inner width.
    """
    inner = {} if feed_forward is None else {"feed_forward": ("intermediate_size", feed_forward)}
    return {
        "layers": ("num_hidden_layers", layers),
        "hidden": ("hidden_size", hidden),
        "heads": ("num_attention_heads", heads),
        "kv_heads": ("num_key_value_heads", kv_heads),
        "head_elements": ("head_dim", head_elements),
        **inner,
        "sequence": ("max_position_embeddings", sequence),
        "vocabulary": ("vocab_size", vocabulary),
        "attention_dropout": ("attention_dropout", 0.0),
        "tied": ("tie_word_embeddings", tied),
    }


def language_model(
    name: str,
    keys: Mapping[str, tuple[str, object]],
    computed: Callable[[Plain], dict[str, Any]],
    *,
    activation: tuple[str, str] = ("hidden_act", "silu"),
    activations: Mapping[str, str] = GATED,
    only: Plain = NO_WINDOW,
    fixed: Plain = LLAMA,
    synonyms: Mapping[str, str] | None = None,
) -> Family:
    """Return a family whose classes have a name and the endings of all language models.

    Parameters
    ----------
    name
        Of the classes, without ``ForCausalLM`` or ``Model``.
    keys, computed, activation, activations, only, fixed, synonyms
        As in `Family`.
    """
    classes = (f"{name}ForCausalLM", f"{name}Model")
    return Family(keys, activation, activations, classes, only, fixed, synonyms or {}, computed)

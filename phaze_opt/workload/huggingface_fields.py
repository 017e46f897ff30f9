"""Fields of a transformer that no single key of a Hugging Face configuration states.

A window for every layer, biases that hang on two keys, the tokens of an image: one function for the
model types that have them, which takes the configuration and returns the fields. Keys that are left
out have the defaults of the classes, as in `huggingface_families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phaze_opt.codec import to_json
from phaze_opt.errors import InputError
from phaze_opt.workload.config_checks import LARGEST_SIZE

Plain = Mapping[str, Any]
"""A configuration as it stands in its file."""

CAPTURE_IT = "capture it: `phaze-opt workload capture MODULE:FACTORY --output FILE.json`"
"""The way that is left to a model whose configuration cannot be read."""


def refusal(key: str, value: object, allowed: str) -> InputError:
    """Build the error for a key whose value cannot be read, with the way that remains."""
    return InputError(
        f"{key} is {as_json(value)} in the Hugging Face configuration, but only {allowed} can be "
        f"read; {CAPTURE_IT}."
    )


def as_json(value: object) -> str:
    """Return a value as the configuration has it."""
    return to_json(value).decode()


def flag(plain: Plain, key: str, default: bool) -> bool:
    """Return a key that is true or false; null stands for its default.

    Raises
    ------
    InputError
        If it is neither.
    """
    value = plain.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refusal(key, value, "true or false")
    return value


def whole_number(plain: Plain, key: str, default: int) -> int:
    """Return a key that other fields are computed from; null stands for its default.

    Raises
    ------
    InputError
        If it is not a whole number, is negative, or is larger than any model's.
    """
    value = plain.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST_SIZE:
        raise refusal(key, value, f"a whole number from 0 to {LARGEST_SIZE}")
    return value


def same_of_all_layers(plain: Plain, key: str, default: int) -> int:
    """Return a key that is one whole number, or a list of equal ones with one for every layer.

    Raises
    ------
    InputError
        If it is neither.
    """
    value = plain.get(key)
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        return whole_number({key: value[0]}, key, default)
    return whole_number(plain, key, default)


def positive_number(plain: Plain, key: str, default: float) -> float:
    """Return a key that other fields are computed from; null stands for its default.

    Raises
    ------
    InputError
        If it is no number above 0, or is larger than any model's.
    """
    value = plain.get(key)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= LARGEST_SIZE:
        raise refusal(key, value, f"a number above 0 and up to {LARGEST_SIZE}")
    return float(value)


def places(plain: Plain, key: str, default: Sequence[int]) -> tuple[int, ...]:
    """Return a key that lists layers, counted from 0; null stands for its default.

    Raises
    ------
    InputError
        If it is no list of whole numbers.
    """
    value = plain.get(key)
    if value is None:
        return tuple(default)
    if not isinstance(value, list) or not all(type(place) is int and place >= 0 for place in value):
        raise refusal(key, value, "a list of layers, counted from 0,")
    return tuple(value)


def inner_configuration(plain: Plain, name: str) -> Plain:
    """Return a configuration inside another; an empty one where it has none.

    Raises
    ------
    InputError
        If it is none.
    """
    inner = plain.get(name) or {}
    if not isinstance(inner, Mapping):
        raise refusal(name, inner, "a configuration")
    return inner


def layer_windows(plain: Plain, layers: int, window: int, slides: Sequence[bool]) -> Any:
    """Return the window of every block; ``layer_types`` goes before what the class would choose."""
    types = plain.get("layer_types")
    if types is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(types, list) or len(types) != layers or not set(types) <= set(known):
            raise refusal("layer_types", types, f"{' or '.join(known)} for each of {layers} layers")
        slides = [kind == "sliding_attention" for kind in types]
    if not window or not any(slides):
        return ()
    return tuple(window if slide else 0 for slide in slides)


def window_of(plain: Plain, default: int) -> int:
    """Return the width of a window; null means none, in place of the default."""
    return whole_number(plain, "sliding_window", 0 if "sliding_window" in plain else default)


def rotated_layers(plain: Plain, layers: int) -> list[bool]:
    """Return of every layer whether it rotates queries and keys (1 in ``no_rope_layers``)."""
    interval = whole_number(plain, "no_rope_layer_interval", 4) or 1
    turned = plain.get("no_rope_layers") or [int((i + 1) % interval > 0) for i in range(layers)]
    if not isinstance(turned, list) or len(turned) != layers or not set(turned) <= {0, 1}:
        raise refusal("no_rope_layers", turned, f"a list of 0 and 1 for {layers} layers")
    return [turns == 1 for turns in turned]


def unrotated(rotated: Sequence[bool]) -> dict[str, Any]:
    """Compute the layers that do not rotate queries and keys; nothing where all do."""
    layers = tuple(i for i, turns in enumerate(rotated) if not turns)
    return {"unrotated_layers": layers} if layers else {}


def every_layer_slides(default: int) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes one window for all layers, where null means none."""

    def compute(plain: Plain) -> dict[str, Any]:
        layers = whole_number(plain, "num_hidden_layers", 32)
        return {"windows": layer_windows({}, layers, window_of(plain, default), [True] * layers)}

    return compute


def phi3(plain: Plain) -> dict[str, Any]:
    """Compute windows, the rotated part of a head and the place of dropout."""
    hidden = whole_number(plain, "hidden_size", 3072)
    heads = whole_number(plain, "num_attention_heads", 32)
    return {
        **every_layer_slides(0)(plain),
        **embedding_dropout(plain, ("embd_pdrop", 0.0), ("resid_pdrop", 0.0)),
        "rotary_elements": rotary_elements(plain, hidden, heads, 1.0),
    }


def qwen2(plain: Plain) -> dict[str, Any]:
    """Compute the windows of the later layers."""
    layers = whole_number(plain, "num_hidden_layers", 32)
    first = whole_number(plain, "max_window_layers", 28)
    window = window_of(plain, 4096) if flag(plain, "use_sliding_window", False) else 0
    return {"windows": layer_windows(plain, layers, window, [i >= first for i in range(layers)])}


def qwen3(plain: Plain) -> dict[str, Any]:
    """Compute the windows of the later layers, and the biases."""
    return qwen2(plain) | attention_bias(plain)


def gemma(pattern: int) -> Callable[[Plain], dict[str, Any]]:
    """Return what computes the windows of Gemma 2 and 3: every ``pattern``-th layer has none."""

    def compute(plain: Plain) -> dict[str, Any]:
        layers = whole_number(plain, "num_hidden_layers", 26)
        window = window_of(plain, 4096)
        every = whole_number(plain, "sliding_window_pattern", pattern) or 1
        slides = [(i + 1) % every != 0 for i in range(layers)]
        return {
            "windows": layer_windows(plain, layers, window, slides),
            **attention_bias(plain),
        }

    return compute


def attention_bias(plain: Plain) -> dict[str, Any]:
    """Compute the biases of the attention, where the other layers have none."""
    bias = flag(plain, "attention_bias", False) or None
    return {"query_key_value_bias": bias, "projection_bias": bias}


def llama(plain: Plain) -> dict[str, Any]:
    """Compute the biases, which attention and feed-forward network have apart."""
    attention = flag(plain, "attention_bias", False)
    feed_forward = flag(plain, "mlp_bias", False)
    if attention == feed_forward:
        return {"bias": attention}
    biases = {"query_key_value_bias": attention, "projection_bias": attention}
    return {"bias": feed_forward, **biases}


def embedding_dropout(
    plain: Plain, embedding: tuple[str, float], stream: tuple[str, float]
) -> dict[str, Any]:
    """Compute whether dropout follows the embedding; it may not be the only place."""
    key, default = embedding
    probability = plain.get(key, default)
    if probability and not plain.get(*stream):
        raise refusal(key, probability, f"0.0 where {stream[0]} is 0.0")
    return {"embedding_dropout": bool(probability) or not plain.get(*stream)}


def gpt2(plain: Plain) -> dict[str, Any]:
    """Compute the place of dropout."""
    return embedding_dropout(plain, ("embd_pdrop", 0.1), ("resid_pdrop", 0.1))


def opt(plain: Plain) -> dict[str, Any]:
    """Compute the place of norms, and the position table, whose rows are offset by two."""
    pre = flag(plain, "do_layer_norm_before", True)
    return {
        "norm_position": "pre" if pre else "post",
        "final_norm": pre and not flag(plain, "_remove_final_layer_norm", False),
        "position_rows": whole_number(plain, "max_position_embeddings", 2048) + 2,
    }


def roberta(plain: Plain) -> dict[str, Any]:
    """Compute the tokens: the first rows of the position table stand for padding."""
    rows = whole_number(plain, "max_position_embeddings", 512)
    return {
        "sequence": rows - whole_number(plain, "pad_token_id", 1) - 1,
        "position_rows": rows,
    }


def rotary_elements(plain: Plain, hidden: int, heads: int, default: float) -> int:
    """Return how many elements of a head are rotated; 0 for all."""
    rope = plain.get("rope_parameters")
    inside = rope if isinstance(rope, Mapping) else {}
    key = "rotary_pct" if "rotary_pct" in plain else "partial_rotary_factor"
    share = plain.get(key)
    if share is None:
        share = inside.get("partial_rotary_factor", default)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise refusal(key, share, "a number above 0 and up to 1")
    size = hidden // max(1, heads)
    return int(size * share) if share < 1 else 0


def gpt_neox(plain: Plain) -> dict[str, Any]:
    """Compute the rotated part of a head, the biases and the order of the sub-layers."""
    hidden = whole_number(plain, "hidden_size", 6144)
    heads = whole_number(plain, "num_attention_heads", 64)
    bias = None if flag(plain, "attention_bias", True) else False
    return {
        "rotary_elements": rotary_elements(plain, hidden, heads, 0.25),
        "query_key_value_bias": bias,
        "projection_bias": bias,
        "residual": "parallel" if flag(plain, "use_parallel_residual", True) else "sequential",
    }


def falcon(plain: Plain) -> dict[str, Any]:
    """Compute the key heads and the order of the sub-layers, which newer Falcons state apart."""
    newer = flag(plain, "new_decoder_architecture", False)
    kv_heads = whole_number(plain, "num_kv_heads", 0) if newer else 0
    if not newer and flag(plain, "multi_query", True):
        kv_heads = 1
    residual = "sequential"
    if newer:
        norms = whole_number(plain, "num_ln_in_parallel_attn", 2)
        residual = "parallel" if norms == 2 else "parallel_shared_norm"
    elif flag(plain, "parallel_attn", True):
        residual = "parallel_shared_norm"
    return {"kv_heads": kv_heads, "residual": residual}


def vit(plain: Plain) -> dict[str, Any]:
    """Compute the tokens of an image, and the classes from their labels."""
    edge, patch = whole_number(plain, "image_size", 224), whole_number(plain, "patch_size", 16)
    if not 1 <= patch <= edge:
        raise refusal("patch_size", patch, f"a size from 1 to the image_size of {edge}")
    labels = plain.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) and labels else 2
    bias = None if flag(plain, "qkv_bias", True) else False
    return {
        "sequence": (edge // patch) ** 2 + 1,
        "vocabulary": whole_number(plain, "num_labels", count),
        "query_key_value_bias": bias,
    }


def t5(plain: Plain) -> dict[str, Any]:
    """Compute the blocks of the decoder, which are as many as the encoder's where not stated."""
    encoder = whole_number(plain, "num_layers", 6)
    return {"layers": whole_number(plain, "num_decoder_layers", encoder)}

"""How the towers of images before language models are read from Hugging Face configurations.

By the ``model_type`` of the whole configuration, with the defaults of its classes (transformers
4.57 to 5). Towers that take images of any size have no size in their configuration: it is stated,
or 448, which makes 256 tokens of Qwen2-VL. A still image counts as the two frames that such a tower
makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from phaze_opt.workload.huggingface_fields import (
    CAPTURE_IT,
    Plain,
    inner_configuration,
    places,
    positive_number,
    refusal,
    whole_number,
)

_ANY_EDGE = 448


class AskedImages(NamedTuple):
    """Images that are asked for behind the name of a model.

    Attributes
    ----------
    each
        How many a sample has.
    edge
        Of a square image; 0 for that of the configuration, or the usual one.
    """

    each: int
    edge: int = 0


def _tower(
    vision: Plain, keys: Mapping[str, tuple[str, int]], edge: int, **others: Any
) -> dict[str, Any]:
    """Return the fields of a tower, of keys and their defaults, and others."""
    read = {name: whole_number(vision, *key) for name, key in keys.items()}
    fields = {
        **{"norm": "layer_norm", "activation": "gelu", "causal": False, "dropout": 0.0},
        **{"attention": "flash", "attention_dropout": 0.0, "embedding_dropout": False},
        **{"vocabulary": 1, "channels": 3, "image_size": edge, "tied": False},
        **read,
        **others,
    }
    patch = fields["patch_size"]
    if not patch or edge % patch:
        raise refusal("image_size", edge, f"a multiple of the patch_size of {patch}")
    return {**fields, "sequence": (edge // patch) ** 2 + ("pools" not in fields)}


def _projector(asked: AskedImages, **fields: Any) -> dict[str, Any]:
    return {"images": asked.each, **fields}


def _qwen(version: int) -> Callable[[Plain, AskedImages, int], dict[str, Any]]:
    """Return what reads the tower of Qwen2-VL, Qwen2.5-VL (25) or Qwen3-VL."""

    def read(plain: Plain, asked: AskedImages, hidden: int) -> dict[str, Any]:
        vision = inner_configuration(plain, "vision_config")
        width = ("embed_dim", 1280) if version == 2 else ("hidden_size", 1152)
        width = ("hidden_size", 1280) if version == 25 else width
        keys = {
            "layers": ("depth", 27 if version == 3 else 32),
            "hidden": width,
            "heads": ("num_heads", 16),
            "patch_size": ("patch_size", 16 if version == 3 else 14),
        }
        own = whole_number(vision, *width)
        if version == 2:
            inner = int(own * positive_number(vision, "mlp_ratio", 4.0))
        else:
            inner = whole_number(vision, "intermediate_size", 4304 if version == 3 else 3420)
        merge = whole_number(vision, "spatial_merge_size", 2)
        frames = whole_number(vision, "temporal_patch_size", 2)
        others: dict[str, Any] = {"feed_forward": inner, "pools": True, "positions": "rotary"}
        others["channels"] = frames * whole_number(vision, "in_channels", 3)
        others["position_rows"] = (
            whole_number(vision, "num_position_embeddings", 2304) if version == 3 else 0
        )
        if version == 25:
            others |= {"norm": "rms_norm", "activation": "swiglu"}
            side = whole_number(vision, "window_size", 112)
            seen = (side // (whole_number(vision, *keys["patch_size"]) or 1)) ** 2
            full = places(vision, "fullatt_block_indexes", [7, 15, 23, 31])
            count = whole_number(vision, *keys["layers"])
            others["windows"] = tuple(0 if i in full else seen for i in range(count))
            others["chunked"] = True
        wide = own * merge**2
        return {
            "images": _tower(vision, keys, asked.edge or _ANY_EDGE, **others),
            "projector": _projector(
                asked,
                merge=merge**2,
                widths=(wide, hidden),
                patch_bias=version == 3,
                deepstack=places(vision, "deepstack_visual_indexes", [8, 16, 24])
                if plain["model_type"] in _DEEPSTACK
                else (),
            ),
        }

    return read


def _siglip_keys(layers: int, hidden: int, heads: int, inner: int, patch: int) -> dict[str, Any]:
    return {
        "layers": ("num_hidden_layers", layers),
        "hidden": ("hidden_size", hidden),
        "heads": ("num_attention_heads", heads),
        "feed_forward": ("intermediate_size", inner),
        "patch_size": ("patch_size", patch),
    }


def _gemma3(plain: Plain, asked: AskedImages, hidden: int) -> dict[str, Any]:
    """Compute a SigLIP whose tokens are averaged to so many of an image."""
    vision = inner_configuration(plain, "vision_config")
    edge = _own_edge(vision, asked, 896)
    tower = _tower(vision, _siglip_keys(27, 1152, 16, 4304, 14), edge, pools=True)
    tokens = whole_number(plain, "mm_tokens_per_image", 256) or 1
    return {
        "images": tower,
        "projector": _projector(
            asked,
            **{"merge": tower["sequence"] // tokens, "widths": (hidden,), "bias": False},
            **{"pools": True, "merged_norm": "rms_norm"},
        ),
    }


def _llama4(plain: Plain, asked: AskedImages, hidden: int) -> dict[str, Any]:
    """Compute a tower with a token for the class, and a projection in three products."""
    vision = inner_configuration(plain, "vision_config")
    keys = _siglip_keys(34, 1408, 16, 5632, 14)
    edge = _own_edge(vision, asked, 336)
    tower = _tower(vision, keys, edge, positions="rotary", embedding_norm=True)
    merge = round(1 / positive_number(vision, "pixel_shuffle_ratio", 0.5) ** 2)
    inner = whole_number(vision, "projector_input_dim", 4096)
    widths = (inner, whole_number(vision, "projector_output_dim", 4096), hidden)
    return {
        "images": {**tower, "position_rows": tower["sequence"]},
        "projector": _projector(asked, merge=merge, widths=widths, bias=False, patch_bias=False),
    }


def mllama_crosses(text: Plain) -> tuple[int, ...]:
    """Return the blocks of Llama 3.2's language model that attend to images."""
    return places(text, "cross_attention_layers", range(3, 40, 5))


def _mllama(plain: Plain, asked: AskedImages, hidden: int) -> dict[str, Any]:
    """Compute a tower of two stacks over the tiles of an image, and who attends to its result."""
    vision, text = (inner_configuration(plain, f"{name}_config") for name in ("vision", "text"))
    keys = {
        **_siglip_keys(32, 1280, 16, 5120, 14),
        "heads": ("attention_heads", whole_number(vision, "num_attention_heads", 16)),
    }
    gated = whole_number(vision, "num_global_layers", 8)
    edge = _own_edge(vision, asked, 448)
    tower = _tower(vision, keys, edge, query_key_value_bias=False, projection_bias=False)
    features = places(vision, "intermediate_layers_indices", (3, 7, 15, 23, 30))
    wide = tower["hidden"] * (1 + len(features))
    if whole_number(vision, "vision_output_dim", 7680) != wide:
        raise refusal("vision_output_dim", vision["vision_output_dim"], str(wide))
    ratios = vision.get("supported_aspect_ratios")
    return {
        "layers": whole_number(text, "num_hidden_layers", 40),
        "images": {**tower, "layers": tower["layers"] + gated, "embedding_norm": True},
        "projector": _projector(
            asked,
            **{"merge": 1, "widths": (hidden,), "patch_bias": False},
            tiles={
                "count": whole_number(vision, "max_num_tiles", 4),
                "ratios": 1 + (len(ratios) if isinstance(ratios, list) else 8),
                "features": features,
                "gated_layers": gated,
                "crosses": mllama_crosses(text),
                "added_words": 8,
            },
        ),
    }


def _own_edge(vision: Plain, asked: AskedImages, usual: int) -> int:
    """Return the edge of images that a tower is made for."""
    edge = whole_number(vision, "image_size", usual)
    if asked.edge not in (0, edge):
        raise refusal("image_size", edge, f"images of {edge} by {edge}, not of {asked.edge},")
    return edge


_DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe")
_READERS: Mapping[str, Callable[[Plain, AskedImages, int], dict[str, Any]]] = {
    "qwen2_vl": _qwen(2),
    "qwen2_5_vl": _qwen(25),
    "qwen3_vl": _qwen(3),
    "qwen3_vl_moe": _qwen(3),
    "qwen3_5": _qwen(3),
    "qwen3_5_moe": _qwen(3),
    "gemma3": _gemma3,
    "llama4": _llama4,
    "mllama": _mllama,
}


def image_fields(plain: Plain, asked: AskedImages, hidden: int) -> dict[str, Any]:
    """Return the fields of the tower of images and of its projection.

    Parameters
    ----------
    plain
        The whole configuration.
    asked
        Images of a sample.
    hidden
        Width of the language model.

    Raises
    ------
    InputError
        If its tower cannot be read.
    """
    model_type = str(plain.get("model_type"))
    if model_type not in _READERS:
        raise refusal(
            "model_type", model_type, f"towers of {', '.join(_READERS)} (for another, {CAPTURE_IT})"
        )
    return _READERS[model_type](plain, asked, hidden)

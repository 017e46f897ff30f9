"""How the configurations of diffusion transformers are read.

A table as `phaze_opt.workload.huggingface_families` has it, by the ``_class_name`` of their
library, with the defaults of its classes (diffusers 0.35). Configurations do not say how many
tokens there are: an image has the 4,096 of 1024 by 1024 pixels where nothing else is stated, and a
text those of its pipelines, 77 of CLIP and 256 of T5 beside Stable Diffusion 3, and 512 beside
FLUX.1 and Wan 2.1, whose video has 81 frames of 480 by 832 pixels, 21 by 60 by 104 latents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from phaze_opt.workload.huggingface_families import Family
from phaze_opt.workload.huggingface_fields import Plain, flag, places, refusal, whole_number

_FLUX_IMAGE_TOKENS = 4096
_LATENTS = (21, 60, 104)
_TEXT_TOKENS = {"SD3Transformer2DModel": 77 + 256, "FluxTransformer2DModel": 512}


def _blocks(plain: Plain, layers: int, heads: int, width: int) -> dict[str, Any]:
    """Return the fields of the blocks, with some defaults."""
    count = whole_number(plain, "num_attention_heads", heads)
    return {
        "layers": whole_number(plain, "num_layers", layers),
        "heads": count,
        "hidden": count * whole_number(plain, "attention_head_dim", width),
        "causal": False,
        "tied": False,
        "attention": "flash",
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _stable_diffusion(plain: Plain) -> dict[str, Any]:
    """Compute the tokens of the image from the size of its latents; the last block drops text."""
    fields = _blocks(plain, 18, 18, 64)
    edge, patch = whole_number(plain, "sample_size", 128), whole_number(plain, "patch_size", 2)
    if not 1 <= patch <= edge:
        raise refusal("patch_size", patch, f"a size from 1 to the sample_size of {edge}")
    width = whole_number(plain, "caption_projection_dim", 1152)
    if width != fields["hidden"]:
        raise refusal("caption_projection_dim", width, f"the width of {fields['hidden']}")
    norm = plain.get("qk_norm")
    if norm not in (None, "rms_norm"):
        raise refusal("qk_norm", norm, 'null or "rms_norm"')
    channels = whole_number(plain, "in_channels", 16)
    if whole_number(plain, "out_channels", 16) != channels:
        raise refusal("out_channels", plain["out_channels"], f"the {channels} that come in")
    return {
        **fields,
        "sequence": (edge // patch) ** 2,
        "vocabulary": patch**2 * channels,
        "query_key_norm": norm is not None,
        "diffusion": {
            "text_tokens": _TEXT_TOKENS["SD3Transformer2DModel"],
            "text_width": whole_number(plain, "joint_attention_dim", 4096),
            "pooled_width": whole_number(plain, "pooled_projection_dim", 2048),
        },
    }


def _flux(plain: Plain) -> dict[str, Any]:
    """Compute both kinds of blocks; channels are those of packed patches."""
    channels = whole_number(plain, "in_channels", 64)
    if plain.get("out_channels") not in (None, channels):
        raise refusal("out_channels", plain["out_channels"], f"the {channels} that come in")
    return {
        **_blocks(plain, 19, 24, 128),
        "sequence": _FLUX_IMAGE_TOKENS,
        "vocabulary": channels,
        "positions": "rotary",
        "query_key_norm": True,
        "diffusion": {
            "text_tokens": _TEXT_TOKENS["FluxTransformer2DModel"],
            "text_width": whole_number(plain, "joint_attention_dim", 4096),
            "pooled_width": whole_number(plain, "pooled_projection_dim", 768),
            "single_layers": whole_number(plain, "num_single_layers", 38),
            "guided": flag(plain, "guidance_embeds", False),
            "keeps_text": True,
        },
    }


def _wan(plain: Plain) -> dict[str, Any]:
    """Compute the tokens of the video from its patches, and the text that blocks attend to."""
    channels = whole_number(plain, "in_channels", 16)
    if whole_number(plain, "out_channels", 16) != channels:
        raise refusal("out_channels", plain["out_channels"], f"the {channels} that come in")
    patch = places(plain, "patch_size", (1, 2, 2))
    if len(patch) != len(_LATENTS) or not all(
        size and edge % size == 0 for edge, size in zip(_LATENTS, patch, strict=True)
    ):
        raise refusal("patch_size", list(patch), f"three divisors of {list(_LATENTS)}")
    return {
        **_blocks(plain, 40, 40, 128),
        "feed_forward": whole_number(plain, "ffn_dim", 13824),
        "sequence": math.prod(_LATENTS) // math.prod(patch),
        "vocabulary": math.prod(patch) * channels,
        **{"norm": "rms_norm", "positions": "rotary", "query_key_norm": True},
        "head_norm": "whole",
        "diffusion": {
            "text_tokens": 512,
            "text_width": whole_number(plain, "text_dim", 4096),
            "pooled_width": 0,
            "time_width": whole_number(plain, "freq_dim", 256),
            "crosses": True,
        },
    }


def _family(name: str, computed: Callable[[Plain], dict[str, Any]], only: Plain) -> Family:
    """Return a family whose fields all hang on several keys."""
    return Family({}, ("activation_fn", "gelu"), {"gelu": "gelu"}, (name,), only, computed=computed)


DIFFUSION_FAMILIES: Mapping[str, Family] = {
    "SD3Transformer2DModel": _family(
        "SD3Transformer2DModel", _stable_diffusion, {"dual_attention_layers": []}
    ),
    "FluxTransformer2DModel": _family("FluxTransformer2DModel", _flux, {"patch_size": 1}),
    "WanTransformer3DModel": _family(
        "WanTransformer3DModel",
        _wan,
        {
            **{"image_dim": None, "added_kv_proj_dim": None, "cross_attn_norm": True},
            "qk_norm": "rms_norm_across_heads",
        },
    ),
}
"""By ``_class_name``."""

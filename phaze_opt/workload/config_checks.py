"""Which shapes of a transformer cannot be: each refused with one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from phaze_opt.checked import shown
from phaze_opt.errors import InputError

if TYPE_CHECKING:
    from phaze_opt.workload.compressed_attention import CompressedAttention
    from phaze_opt.workload.config import TransformerConfig
    from phaze_opt.workload.projector import Projector

LARGEST_SIZE = 2**24
"""Of every edge of a model's tensors."""

_MOST_ELEMENTS = 2**36
MOST_LAYERS = 10_000
"""A larger number is a typing error, and tensors would have more than 2**63 elements."""

_SUBLAYERS = {
    "*": "attention",
    "M": "the state-space mixer",
    "D": "the delta net",
    "H": "the state-space mixer",
    "-": "the feed-forward network",
    "E": "the experts",
}
"""Letters of a pattern, and whose sizes they need."""

_CHOICES = {
    "norm": ("layer_norm", "rms_norm"),
    "norm_position": ("pre", "post", "both", "output"),
    "residual": ("sequential", "parallel", "parallel_shared_norm"),
    "activation": ("gelu", "relu", "relu2", "swiglu", "geglu"),
    "positions": ("learned", "rotary", "relative", "none"),
    "attention": ("eager", "flash"),
    "head": ("language_model", "masked_language_model", "classifier"),
    "kernels": ("fused", "compiled", "framework"),
}


def check_shape(config: TransformerConfig) -> None:
    """Refuse sizes that no model has, and fields that contradict each other.

    Raises
    ------
    InputError
        Names the field, its value and what is allowed.
    """
    refuse_outside("layers", config.layers, 1, MOST_LAYERS)
    for name in ("hidden", "heads", "sequence", "vocabulary"):
        refuse_outside(name, getattr(config, name), 1)
    for name in (
        *("kv_heads", "head_elements", "feed_forward", "embedding_size"),
        *("position_rows", "token_types", "rotary_elements", "relative_buckets"),
        *("encoder_layers", "image_size", "patch_size", "channels"),
    ):
        refuse_outside(name, getattr(config, name), 0)
    for name, allowed in _CHOICES.items():
        if getattr(config, name) not in allowed:
            raise InputError(
                f"{name} is {getattr(config, name)!r}, but it must be {' or '.join(allowed)}."
            )
    for name in ("dropout", "attention_dropout", "inner_dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise InputError(
                f"{name} is {getattr(config, name)}, but it must be at least 0 and below 1."
            )
    if not (config.head_elements or config.latent) and config.hidden % config.heads:
        raise InputError(
            f"hidden is {config.hidden}, but it must be a multiple of the {config.heads} heads."
        )
    if config.positions == "rotary" and config.rotary_size % 2:
        raise InputError(
            f"A head has {config.rotary_size} elements, but rotary positions need an even number."
        )
    if config.heads % config.key_value_heads:
        raise InputError(
            f"kv_heads is {config.kv_heads}, but it must divide the {config.heads} heads."
        )
    _structure(config)


def _structure(config: TransformerConfig) -> None:
    """Refuse fields that contradict each other."""
    if config.experts and not all(0 <= i < config.layers for i in config.experts.dense_layers):
        raise InputError(
            f"dense_layers is {list(config.experts.dense_layers)}, but there are {config.layers} "
            "layers, counted from 0."
        )
    if config.experts and config.experts.count * config.experts.feed_forward >= _MOST_ELEMENTS:
        raise InputError(
            f"{config.experts.count} experts of width {config.experts.feed_forward} are too large "
            "to address."
        )
    if config.latent and (config.positions != "rotary" or config.kv_heads or config.query_key_norm):
        raise InputError(
            "Latent attention needs rotary positions, as many key heads as heads, and no norm "
            "of its heads."
        )
    if config.sinks and (config.attention != "flash" or config.latent or config.attention_softcap):
        raise InputError(
            "Attention sinks need flash attention, without a soft cap or latent vectors."
        )
    if (config.experts or config.latent or config.sinks) and config.encoder_layers:
        raise InputError(
            "Experts, latent attention and attention sinks need a model without an encoder."
        )
    if config.pattern:
        _pattern(config, config.pattern)
    elif config.state_space or config.delta_net:
        raise InputError("State-space mixers and delta nets need a pattern.")
    if config.output_gate and (config.positions != "rotary" or config.latent):
        raise InputError("A gate of attention needs rotary positions, and no latent vectors.")
    others = {
        "experts": config.experts,
        "an encoder and a decoder": config.encoder_layers,
        "a pattern of sub-layers": config.pattern,
        "layers that predict further ahead": config.prediction_layers,
        "several stacks": config.encoder or config.images or config.diffusion,
    }
    kind = next((words for words, has in others.items() if has), None)
    if config.trained and kind is not None:
        raise InputError(
            f"frozen parts and adapters are counted of models that are one chain of dense "
            f"blocks, but this one has {kind}; leave out frozen and lora_rank."
        )
    if config.trained and config.trained.lora_rank and config.latent:
        raise InputError(
            "lora_rank is given, but adapters beside the layers of latent attention are not "
            "counted; leave it out."
        )
    if config.windows and (len(config.windows) != config.layers or min(config.windows) < 0):
        raise InputError(
            f"windows is {list(config.windows)}, but it must have a number of tokens for each of "
            f"the {config.layers} layers."
        )
    if config.rotary_elements > config.head_size:
        raise InputError(
            f"rotary_elements is {config.rotary_elements}, but a head has {config.head_size}."
        )
    if config.attention_softcap < 0 or config.logit_softcap < 0:
        raise InputError("attention_softcap and logit_softcap must be at least 0.")
    if config.positions == "relative" and (
        config.attention != "eager" or not config.encoder_layers
    ):
        raise InputError("Relative positions need eager attention and an encoder.")
    if config.encoder_layers and config.positions != "relative":
        raise InputError("An encoder and a decoder need relative positions.")
    if config.patch_size and config.sequence != config.image_tokens:
        raise InputError(
            f"sequence is {config.sequence}, but an image of {config.image_size} in patches of "
            f"{config.patch_size} has {config.image_tokens} tokens."
        )

    _blocks(config)
    _towers(config)


def _pattern(config: TransformerConfig, pattern: str) -> None:
    """Refuse a pattern that is none, or needs what the model does not have."""
    blocks, letters = pattern.split(), set(pattern) - {" "}
    if len(blocks) != config.layers or not letters <= _SUBLAYERS.keys():
        raise InputError(
            f"pattern is {shown(pattern)}, but it must have {config.layers} blocks of "
            f"{' '.join(_SUBLAYERS)}, apart by spaces."
        )
    has = {"M": bool(config.state_space), "D": bool(config.delta_net), "E": bool(config.experts)}
    has["H"] = has["M"]
    for letter in sorted(letters & has.keys()):
        if not has[letter]:
            raise InputError(
                f"pattern has {letter}, but the sizes of {_SUBLAYERS[letter]} are missing."
            )
    others: object = (
        config.residual != "sequential" or config.norm_position != "pre" or config.windows
    )
    others = others or config.encoder_layers or config.indexer
    if others or (config.experts and config.experts.dense_layers):
        raise InputError(
            "A pattern of sub-layers needs norms before each, residuals in sequence, and no "
            "windows, encoder, indexer or list of dense layers."
        )


def _blocks(config: TransformerConfig) -> None:
    """Refuse what single blocks cannot have."""
    if config.unrotated_layers and (
        config.positions != "rotary"
        or config.latent
        or not all(0 <= i < config.layers for i in config.unrotated_layers)
    ):
        raise InputError(
            f"unrotated_layers is {list(config.unrotated_layers)}, but it needs rotary positions "
            f"without latent attention, and layers from 0 to {config.layers - 1}."
        )
    split = config.chunk_tokens
    if split and (config.attention != "flash" or config.sinks or config.attention_softcap):
        raise InputError("Attention in chunks needs flash attention, without sinks or a soft cap.")
    if split and config.sequence % split:
        raise InputError(
            f"sequence is {config.sequence}, but it must be a multiple of the {split} tokens of "
            f"a chunk of attention, or at most {split}."
        )
    if config.indexer and not (
        config.latent and config.attention == "flash" and config.causal and not config.windows
    ):
        raise InputError(
            "An indexer needs latent attention, causal and fused (flash), without windows."
        )
    if config.indexer and (config.attention_dropout or config.attention_softcap):
        raise InputError("An indexer needs attention without dropout and without a soft cap.")
    if config.compressed:
        _compressed(config, config.compressed)
    if config.prediction_layers is not UNSET:
        refuse_outside("prediction_layers", config.prediction_layers, 1, MOST_LAYERS)
        if config.positions not in ("rotary", "none") or config.embedding_width != config.hidden:
            raise InputError(
                "Prediction layers need rotary positions or none, and word embeddings as wide "
                "as the residual stream."
            )
    if config.norm_parameters and config.norm != "layer_norm":
        raise InputError("norm_parameters needs layer_norm; other norms have a weight.")


def _projected(config: TransformerConfig, shape: Projector) -> None:
    """Refuse images in a text that do not fit each other."""
    tower = config.images
    stacks = config.encoder or config.encoder_layers or config.diffusion or config.patch_size
    if not (tower and tower.patch_size) or stacks or tower.experts or tower.images:
        raise InputError(
            "Images in a text need a tower of images with a patch_size, and a language model "
            "without other stacks."
        )
    tokens = tower.sequence - (not tower.pools)
    if tokens % shape.merge or shape.widths[-1:] != (config.hidden,):
        raise InputError(
            f"An image has {tokens} tokens, of which {shape.merge} become one, and the projector "
            f"has widths {list(shape.widths)}; the first must be a multiple of the second, and the "
            f"last width {config.hidden}."
        )
    most = min(tower.layers, config.layers)
    if len(shape.deepstack) > most or not all(0 <= i < tower.layers for i in shape.deepstack):
        raise InputError(
            f"deepstack is {list(shape.deepstack)}, but it must be at most {most} of the "
            f"{tower.layers} blocks of the tower."
        )
    tiles = shape.tiles
    if tiles and not (
        all(0 <= i < config.layers for i in tiles.crosses)
        and all(0 <= i < tower.layers - tiles.gated_layers for i in tiles.features)
        and not (config.experts or config.pattern or config.windows or config.prediction_layers)
    ):
        raise InputError(
            f"Tiles have crosses {list(tiles.crosses)} and features {list(tiles.features)}, but "
            f"these must be among the {config.layers} plain blocks of the language model, and the "
            f"{tower.layers - tiles.gated_layers} blocks of the tower before those with gates."
        )
    if config.image_tokens_in_text > config.sequence:
        raise InputError(
            f"{shape.images} images have {config.image_tokens_in_text} tokens, but sequence is "
            f"{config.sequence}; it must be longer."
        )


def _compressed(config: TransformerConfig, shape: CompressedAttention) -> None:
    """Refuse compressed attention that is none, or needs what the model does not have."""
    plain = config.attention == "flash" and config.causal and config.positions == "rotary"
    others = config.latent or config.windows or config.pattern or config.sinks or config.indexer
    routed = config.experts and not config.experts.dense_layers and config.kv_heads == 1
    if not (plain and routed) or others or config.norm != "rms_norm":
        raise InputError(
            "Compressed attention needs causal, fused attention with rotary positions and one key "
            "head, RMS norms, experts in all blocks, and no other kind of attention."
        )
    if len(shape.ratios) != config.layers or config.heads % shape.groups:
        raise InputError(
            f"Compressed attention has {len(shape.ratios)} ratios and {shape.groups} groups, but "
            f"there are {config.layers} layers, and groups must divide the {config.heads} heads."
        )
    for ratio in filter(None, shape.ratios):
        if config.sequence % ratio:
            raise InputError(
                f"sequence is {config.sequence}, but it must be a multiple of the {ratio} tokens "
                "of a compressed one."
            )


def _towers(config: TransformerConfig) -> None:
    """Refuse stacks that do not go with each other."""
    tower = config.encoder or config.images
    if config.diffusion and (
        *(tower, config.experts, config.latent, config.windows, config.kv_heads, config.causal),
        *(config.prediction_layers, config.encoder_layers, config.patch_size, config.dropout),
        config.attention_dropout,
    ) != (UNSET, UNSET, UNSET, (), 0, False, UNSET, 0, 0, 0.0, 0.0):
        raise InputError(
            "A diffusion transformer has plain blocks whose tokens see each other: no experts, "
            "windows, shared heads, causal mask, dropout or other stacks."
        )
    if config.projector:
        _projected(config, config.projector)
    if not tower or config.projector:
        return
    plain = config.positions == tower.positions == "learned" and not (
        config.encoder_layers or config.experts or config.windows or config.prediction_layers
    )
    if not plain or (config.encoder and config.images):
        raise InputError(
            "An encoder of speech or images needs learned positions, and blocks without "
            "experts and windows."
        )
    if config.encoder and tower.hidden != config.hidden:
        raise InputError(
            f"An encoder of speech has hidden {tower.hidden}, but it must be {config.hidden} as "
            "the decoder that attends to it."
        )
    if config.images and not tower.patch_size:
        raise InputError("An encoder of images needs a patch_size.")
    if config.images and tower.pools and tower.vocabulary != tower.hidden:
        raise InputError(
            f"An encoder of images that pools has a vocabulary of {tower.vocabulary}, but it "
            f"must be its width of {tower.hidden}: its result is not projected."
        )


def refuse_outside(name: str, value: int, least: int, most: int = LARGEST_SIZE) -> None:
    """Refuse a size that is too small, or larger than that of any model.

    Raises
    ------
    InputError
        Names the size, its value and what is allowed.
    """
    if not least <= value <= most:
        raise InputError(f"{name} is {shown(value)}, but it must be between {least} and {most}.")

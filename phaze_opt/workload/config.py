"""The shape of a transformer as one frozen dataclass. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from phaze_opt.checked import shown
from phaze_opt.choices import AttentionKind
from phaze_opt.errors import InputError
from phaze_opt.workload.experts import Experts, LatentAttention
from phaze_opt.workload.trained import Trained

TENSOR_DEGREES = (1, 2, 4, 8)
"""Tensor degrees that are considered: up to the devices of one server (Megatron-LM)."""

_VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads a vocabulary that is split to a multiple of this times the tensor degree."""

_LARGEST_SIZE = 2**24
_MOST_ELEMENTS = 2**36
MOST_LAYERS = 10_000
"""A larger number is a typing error, and tensors would have more than 2**63 elements."""

"""How attention is computed: scores in memory, or one fused core."""

KernelMaker = Literal["fused", "compiled", "framework"]
"""What makes the kernels around products, see `TransformerConfig`."""

_CHOICES = {
    "norm": ("layer_norm", "rms_norm"),
    "norm_position": ("pre", "post", "both"),
    "residual": ("sequential", "parallel", "parallel_shared_norm"),
    "activation": ("gelu", "relu", "swiglu", "geglu"),
    "positions": ("learned", "rotary", "relative"),
    "attention": ("eager", "flash"),
    "head": ("language_model", "masked_language_model", "classifier"),
    "kernels": ("fused", "compiled", "framework"),
}


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer: an encoder, a decoder, an encoder of images, or an encoder and a decoder.

    Attributes
    ----------
    layers, hidden, heads
        Blocks, width of the residual stream, attention heads.
    sequence
        Tokens per sample; with an encoder, those of each of its two sequences.
    vocabulary
        Rows of the word embedding, or classes of a classifier.
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
        Rows of the learned position table; the table has at least ``sequence`` rows. Rotary and
        relative positions have no such table.
    rotary_elements
        Elements of a head that rotary positions rotate; 0 means all.
    relative_buckets
        Rows of T5's table of relative positions, whose entries are added to the scores.
    token_types
        Rows of BERT's segment table; 0 for none.
    norm, norm_position
        Kind of normalisation; its place is before each sub-layer, after the residual sum (BERT,
        OPT-350m), or before and after each sub-layer (Gemma 2).
    residual
        Whether the feed-forward network follows the attention, or both read the same residual
        stream (GPT-NeoX), perhaps through one norm (Falcon 7B).
    embedding_norm, final_norm
        Whether a normalisation follows the embedding (BERT), and whether one follows the last
        block.
    activation
        Activation of the feed-forward network; ``swiglu`` and ``geglu`` have three matrices, the
        others two.
    causal
        Whether a token attends only to earlier tokens. The products are still computed in full.
    attention
        ``eager`` writes the scores to memory; ``flash`` is one operator that keeps them on chip.
    windows
        By block: the latest tokens that a query attends to, 0 for all of them; empty where every
        block attends to all. Fused attention counts the window for every query, and leaves out
        the tiles that no query sees; through scores in memory all products are computed, as under
        a causal mask.
    query_key_norm
        Whether every query and key head is normalised (Qwen 3, Gemma 3).
    attention_softcap, logit_softcap
        Limits that a hyperbolic tangent sets to scores and logits (Gemma 2); 0 for none.
    dropout
        Probability of dropout after the embedding and after both sub-layers.
    embedding_dropout
        Whether that dropout follows the embedding too.
    inner_dropout
        Probability of dropout inside the feed-forward network (T5).
    attention_dropout
        Probability of dropout on attention probabilities.
    bias
        Whether linear layers of a block have a bias.
    query_key_value_bias, projection_bias
        Whether those of the attention have one, where it differs from ``bias``.
    embedding_scale
        Whether the embedding is multiplied by a constant (Gemma).
    head
        Language model (GPT, Llama), BERT's masked language model (a dense layer, GELU and
        normalisation before the vocabulary, which has a bias), or a classifier of the first token.
    tied
        Whether the head uses the word embedding's weight.
    kernels
        Whether root-mean-square norms and rotary positions are ``fused`` kernels, or what a
        ``framework`` runs for them where nothing is compiled: casts to fp32 and back around one
        kernel per operator, and shared key and value heads copied for every query head (torchtitan
        without compilation). ``compiled`` is the same code behind a compiler of single blocks: one
        kernel for an activation with its gate and for a norm, the gradient of whose weight is one
        more, but rotary positions as complex numbers and copied heads (torchtitan with compiled
        blocks).
    encoder_layers
        Blocks of an encoder, whose result every one of the ``layers`` decoder blocks attends to
        (T5); 0 for none.
    image_size, patch_size, channels
        Edges of a square image and of its patches, and its channels (Dosovitskiy et al. 2021); 0
        where the input is text. A sample is its patches and a first token for the class.
    experts
        The experts of blocks that have some in place of the feed-forward network.
    latent
        How queries, keys and values are made where they come from short vectors; every head then
        has a key and a value of its own.
    sinks
        Whether the softmax of every head has one more score, a parameter (gpt-oss).
    head_norm
        How ``query_key_norm`` differs from one of every head with weights: one norm over all heads
        (OLMoE), or without weights (Llama 4).

    trained
        What of it is trained, where it is not all.

    The last five are left out of the JSON of a shape that does not have them.
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
    norm_position: Literal["pre", "post", "both"] = "pre"
    embedding_norm: bool = False
    final_norm: bool = True
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = "gelu"
    positions: Literal["learned", "rotary", "relative"] = "learned"
    causal: bool = True
    attention: AttentionKind = "eager"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    bias: bool = True
    head: Literal["language_model", "masked_language_model", "classifier"] = "language_model"
    tied: bool = True
    kernels: KernelMaker = "fused"
    windows: tuple[int, ...] = ()
    residual: Literal["sequential", "parallel", "parallel_shared_norm"] = "sequential"
    rotary_elements: int = 0
    relative_buckets: int = 0
    query_key_norm: bool = False
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_dropout: bool = True
    inner_dropout: float = 0.0
    query_key_value_bias: bool | None = None
    projection_bias: bool | None = None
    embedding_scale: bool = False
    encoder_layers: int = 0
    image_size: int = 0
    patch_size: int = 0
    channels: int = 0
    experts: Experts | UnsetType = UNSET
    latent: LatentAttention | UnsetType = UNSET
    sinks: Literal[True] | UnsetType = UNSET
    head_norm: Literal["whole", "unweighted"] | UnsetType = UNSET
    trained: Trained | UnsetType = UNSET

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            _refuse_outside(name, getattr(self, name), 1)
        for name in ("kv_heads", "head_elements", "feed_forward", "embedding_size"):
            _refuse_outside(name, getattr(self, name), 0)
        for name in ("position_rows", "token_types", "rotary_elements", "relative_buckets"):
            _refuse_outside(name, getattr(self, name), 0)
        for name in ("encoder_layers", "image_size", "patch_size", "channels"):
            _refuse_outside(name, getattr(self, name), 0)
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}, but it must be {' or '.join(allowed)}."
                )
        for name in ("dropout", "attention_dropout", "inner_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but it must be at least 0 and below 1."
                )
        if not (self.head_elements or self.latent) and self.hidden % self.heads:
            raise InputError(
                f"hidden is {self.hidden}, but it must be a multiple of the {self.heads} heads."
            )
        if self.positions == "rotary" and self.rotary_size % 2:
            raise InputError(
                f"A head has {self.rotary_size} elements, but rotary positions need an even number."
            )
        if self.heads % self.key_value_heads:
            raise InputError(
                f"kv_heads is {self.kv_heads}, but it must divide the {self.heads} heads."
            )
        self._check_structure()

    def _check_structure(self) -> None:
        """Refuse fields that contradict each other."""
        if self.experts and not all(0 <= i < self.layers for i in self.experts.dense_layers):
            raise InputError(
                f"dense_layers is {list(self.experts.dense_layers)}, but there are {self.layers} "
                "layers, counted from 0."
            )
        if self.experts and self.experts.count * self.experts.feed_forward >= _MOST_ELEMENTS:
            raise InputError(
                f"{self.experts.count} experts of width {self.experts.feed_forward} are too large "
                "to address."
            )
        if self.latent and (self.positions != "rotary" or self.kv_heads or self.query_key_norm):
            raise InputError(
                "Latent attention needs rotary positions, as many key heads as heads, and no norm "
                "of its heads."
            )
        if self.sinks and (self.attention != "flash" or self.latent or self.attention_softcap):
            raise InputError(
                "Attention sinks need flash attention, without a soft cap or latent vectors."
            )
        if (self.experts or self.latent or self.sinks) and self.encoder_layers:
            raise InputError(
                "Experts, latent attention and attention sinks need a model without an encoder."
            )
        if self.trained and (self.experts or self.encoder_layers):
            kind = "experts" if self.experts else "an encoder and a decoder"
            raise InputError(
                f"frozen parts and adapters are counted of models that are one chain of dense "
                f"blocks, but this one has {kind}; leave out frozen and lora_rank."
            )
        if self.trained and self.trained.lora_rank and self.latent:
            raise InputError(
                "lora_rank is given, but adapters beside the layers of latent attention are not "
                "counted; leave it out."
            )
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise InputError(
                f"windows is {list(self.windows)}, but it must have a number of tokens for each of "
                f"the {self.layers} layers."
            )
        if self.rotary_elements > self.head_size:
            raise InputError(
                f"rotary_elements is {self.rotary_elements}, but a head has {self.head_size}."
            )
        if self.attention_softcap < 0 or self.logit_softcap < 0:
            raise InputError("attention_softcap and logit_softcap must be at least 0.")
        if self.positions == "relative" and (self.attention != "eager" or not self.encoder_layers):
            raise InputError("Relative positions need eager attention and an encoder.")
        if self.encoder_layers and self.positions != "relative":
            raise InputError("An encoder and a decoder need relative positions.")
        if self.patch_size and self.sequence != self.image_tokens:
            raise InputError(
                f"sequence is {self.sequence}, but an image of {self.image_size} in patches of "
                f"{self.patch_size} has {self.image_tokens} tokens."
            )

    @property
    def head_size(self) -> int:
        """Elements of one attention head, of its queries and keys."""
        if self.latent:
            return self.latent.width
        return self.head_elements or self.hidden // self.heads

    @property
    def rotary_size(self) -> int:
        """Elements of a head that rotary positions rotate."""
        if self.latent:
            return self.latent.rotary
        return self.rotary_elements or self.head_size

    @property
    def image_tokens(self) -> int:
        """Patches of an image, and one token for its class."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @property
    def block_windows(self) -> tuple[int, ...]:
        """By block: the latest tokens that a query attends to; 0 where these are all."""
        windows = self.windows or (0,) * self.layers
        return tuple(tokens if tokens < self.sequence else 0 for tokens in windows)

    @property
    def routed_blocks(self) -> tuple[bool, ...]:
        """By block: whether it has experts."""
        dense = frozenset(self.experts.dense_layers) if self.experts else range(self.layers)
        return tuple(i not in dense for i in range(self.layers))

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

    def padded_vocabulary(self, tensor_degree: int) -> int:
        """Return the vocabulary that ``tensor_degree`` devices share evenly.

        It is padded only where the tensor degree does not divide it, to a multiple of
        ``128 · tensor_degree`` as in Megatron-LM.
        """
        if self.vocabulary % tensor_degree == 0:
            return self.vocabulary
        multiple = _VOCABULARY_MULTIPLE * tensor_degree
        return -(-self.vocabulary // multiple) * multiple

    def divides(self, tensor_degree: int) -> bool:
        """Say whether ``tensor_degree`` devices share heads and feed-forward network evenly.

        They share the rank of adapters, and the columns that those beside row-parallel layers make.
        """
        return self._most_shares % tensor_degree == 0

    @property
    def _most_shares(self) -> int:
        """Greatest common divisor of all that a tensor-parallel group shares out."""
        heads = self.heads, self.key_value_heads
        return math.gcd(*heads, *self._widths, *self._adapter_edges)

    @property
    def _adapter_edges(self) -> tuple[int, ...]:
        """What a group shares out of adapters: their rank, and the width of what they add to."""
        if not (self.trained and self.trained.lora_rank):
            return ()
        return self.trained.lora_rank, self.hidden

    def adapter_rank(self, target: str) -> int:
        """Return the rank of the adapter beside a linear layer of a block; 0 where none is."""
        return self.trained.rank_of(target) if self.trained else 0

    @property
    def _widths(self) -> tuple[int, ...]:
        """Inner widths of all feed-forward networks, each split over the group."""
        if not self.experts:
            return (self.inner,)
        own = (self.inner,) if self.experts.dense_layers else ()
        shared = (self.experts.shared,) if self.experts.shared else ()
        return (*own, self.experts.feed_forward, *shared)

    def require_tensor_degree(
        self, tensor_degree: int, *, sequence_parallel: bool, model: str
    ) -> None:
        """Refuse a tensor degree that does not divide the model.

        Raises
        ------
        InputError
            If the tensor degree does not divide the model; the message names those that do.
        """
        if tensor_degree < 1 or not self.divides(tensor_degree):
            shared = self._most_shares
            widths = " and ".join(map(str, self._widths))
            adapters = f", rank {self._adapter_edges[0]}" if self._adapter_edges else ""
            allowed = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
            raise InputError(
                f"{model} cannot be split over {tensor_degree} devices: its {self.heads} heads, "
                f"{self.key_value_heads} key-value heads{adapters} and feed-forward width {widths} "
                f"have only the common divisors {allowed}."
            )
        if sequence_parallel and self.sequence % tensor_degree:
            raise InputError(
                f"{model} cannot use sequence parallelism over {tensor_degree} devices: its "
                f"sequence of {self.sequence} tokens is not a multiple of {tensor_degree}."
            )

    def tensor_degrees(self) -> tuple[int, ...]:
        """Return those of `TENSOR_DEGREES` that divide the model."""
        return tuple(
            tensor_degree for tensor_degree in TENSOR_DEGREES if self.divides(tensor_degree)
        )


def _refuse_outside(name: str, value: int, least: int) -> None:
    """Refuse a size that is too small, or larger than that of any model."""
    most = MOST_LAYERS if name == "layers" else _LARGEST_SIZE
    if not least <= value <= most:
        raise InputError(f"{name} is {shown(value)}, but it must be between {least} and {most}.")


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

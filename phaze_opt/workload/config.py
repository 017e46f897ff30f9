"""The shape of a transformer as one frozen dataclass. Nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from phaze_opt.choices import AttentionKind
from phaze_opt.errors import InputError
from phaze_opt.training_options import check_expert_capacity
from phaze_opt.workload.compressed_attention import CompressedAttention
from phaze_opt.workload.config_checks import check_shape
from phaze_opt.workload.diffusion import Diffusion
from phaze_opt.workload.experts import Experts, LatentAttention
from phaze_opt.workload.projector import Projector
from phaze_opt.workload.recurrences import DeltaNet, StateSpace
from phaze_opt.workload.sparse_attention import Indexer
from phaze_opt.workload.trained import Trained

TENSOR_DEGREES = (1, 2, 4, 8)
"""Tensor degrees that are considered: up to the devices of one server (Megatron-LM)."""

_VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads a vocabulary that is split to a multiple of this times the tensor degree."""

KernelMaker = Literal["fused", "compiled", "framework"]
"""What makes the kernels around products, see `TransformerConfig`."""


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
        OPT-350m), before and after each sub-layer (Gemma 2), or only on the output of each
        sub-layer, before the residual sum (OLMo 2).
    residual
        Whether the feed-forward network follows the attention, or both read the same residual
        stream (GPT-NeoX), perhaps through one norm (Falcon 7B).
    embedding_norm, final_norm
        Whether a normalisation follows the embedding (BERT), and whether one follows the last
        block.
    activation
        Activation of the feed-forward network; ``swiglu`` and ``geglu`` have three matrices, the
        others two; ``relu2`` is the square of the rectified value.
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
    pattern
        The sub-layers of every block, blocks apart by spaces, each with its norm: ``*`` attention,
        ``M`` a state-space mixer, ``D`` a gated delta net, ``H`` attention and a state-space mixer
        beside each other, ``-`` a feed-forward network, ``E`` experts. Without a pattern a block
        has attention and then one of the last two.
    state_space, delta_net
        Sizes of the mixers of a pattern.
    output_gate
        Whether the result of attention is scaled by a sigmoid of more projected columns
        (Qwen3-Next).
    norm_parameters
        Whether layer norms have a weight but no bias (Cohere), or neither (OLMo); both where it is
        left out.
    unrotated_layers
        Blocks, counted from 0, whose queries and keys are not rotated (SmolLM3, Llama 4); norms of
        heads without weights are left out there too.
    chunked
        Whether a window of ``windows`` is a chunk: the sequence is cut into pieces of so many
        tokens, and a query sees those of its own piece only (Llama 4).
    head_bias
        Whether the projection to the vocabulary has a bias (Phi).
    prediction_layers
        Layers after the last block that predict tokens further ahead, each from the stream before
        it and the embedding of the next token (DeepSeek-V3); each has a block as the last one, or
        that of ``prediction_block`` under a pattern, and all use the model's embedding and
        projection to the vocabulary.
    indexer
        What chooses the keys that every query of latent attention attends to (DeepSeek-V3.2); the
        heads then share keys and values.
    key_bias
        False where keys alone have no bias (Whisper).
    encoder
        An encoder of speech, whose result every block attends to (Whisper). Its ``sequence`` is the
        frames after two convolutions, the second of which takes every other; its ``channels`` are
        those of the spectrogram.
    images
        An encoder of images beside that of text (CLIP), with ``patch_size``; its ``vocabulary`` is
        the width that both are projected to, and images and texts of a microbatch are compared.
    pools
        Whether an encoder of images has no token for the class, and a learned query attends to its
        tokens instead (SigLIP).
    diffusion
        A diffusion transformer: image tokens (``sequence``) whose patches have ``vocabulary``
        elements, and the text beside them (Stable Diffusion 3, FLUX.1).
    trained
        What of it is trained, where it is not all.
    projector
        What brings the results of ``images`` into the sequence, where that is a tower before a
        language model (Qwen-VL); with rotary positions it may have ``position_rows`` too.
    compressed
        Attention of all blocks to the latest tokens and to compressed ones, and residual streams
        (DeepSeek-V4); heads share one key, and all blocks have experts.

    Those from ``experts`` on are left out of the JSON of a shape that does not have them.
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
    norm_position: Literal["pre", "post", "both", "output"] = "pre"
    embedding_norm: bool = False
    final_norm: bool = True
    activation: Literal["gelu", "relu", "relu2", "swiglu", "geglu"] = "gelu"
    positions: Literal["learned", "rotary", "relative", "none"] = "learned"
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
    pattern: str | UnsetType = UNSET
    state_space: StateSpace | UnsetType = UNSET
    delta_net: DeltaNet | UnsetType = UNSET
    output_gate: Literal[True] | UnsetType = UNSET
    norm_parameters: Literal["weight", "none"] | UnsetType = UNSET
    unrotated_layers: tuple[int, ...] | UnsetType = UNSET
    chunked: Literal[True] | UnsetType = UNSET
    head_bias: Literal[True] | UnsetType = UNSET
    prediction_layers: int | UnsetType = UNSET
    indexer: Indexer | UnsetType = UNSET
    key_bias: Literal[False] | UnsetType = UNSET
    encoder: TransformerConfig | UnsetType = UNSET
    images: TransformerConfig | UnsetType = UNSET
    diffusion: Diffusion | UnsetType = UNSET
    trained: Trained | UnsetType = UNSET
    pools: Literal[True] | UnsetType = UNSET
    compressed: CompressedAttention | UnsetType = UNSET
    projector: Projector | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_shape(self)

    def with_attention(self, attention: AttentionKind) -> TransformerConfig:
        """Return the shape with another way to compute attention, in all its stacks."""
        own = replace(self, attention=attention)
        if self.encoder:
            own = replace(own, encoder=self.encoder.with_attention(attention))
        if self.images:
            own = replace(own, images=self.images.with_attention(attention))
        return own

    @property
    def blocks(self) -> tuple[str, ...]:
        """By block: its sub-layers, see ``pattern``."""
        if self.pattern:
            return tuple(self.pattern.split())
        return tuple(["*E" if routed else "*-" for routed in self.routed_blocks])

    @property
    def prediction_block(self) -> str:
        """Sub-layers of a prediction layer under a pattern (Nemotron 3, Qwen3-Next)."""
        return "*E" if self.experts else "*-"

    @property
    def head_size(self) -> int:
        """Elements of one attention head, of its queries and keys."""
        if self.latent:
            return self.latent.width
        return self.head_elements or self.hidden // self.heads

    @property
    def rotary_size(self) -> int:
        """Elements of a head that rotary positions rotate."""
        if self.compressed:
            return self.compressed.rotary
        if self.latent:
            return self.latent.rotary
        return self.rotary_elements or self.head_size

    @property
    def image_tokens(self) -> int:
        """Patches of an image, and one token for its class where it has one."""
        return (self.image_size // self.patch_size) ** 2 + (not self.pools)

    @property
    def image_tokens_in_text(self) -> int:
        """Tokens of a sequence that images take the place of."""
        if not (self.images and self.projector) or self.projector.tiles:
            return 0
        own = self.images.sequence - (not self.images.pools)
        return self.projector.images * (own // self.projector.merge)

    @property
    def block_windows(self) -> tuple[int, ...]:
        """By block: the latest tokens that a query attends to; 0 where these are all."""
        windows = self.windows or (0,) * self.layers
        return tuple(tokens if tokens < self.sequence else 0 for tokens in windows)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk that some blocks attend within; 0 where none does."""
        return max(self.block_windows) if self.chunked else 0

    @property
    def routed_blocks(self) -> tuple[bool, ...]:
        """By block: whether it has experts."""
        if self.pattern:
            return tuple("E" in block for block in self.pattern.split())
        dense = frozenset(self.experts.dense_layers) if self.experts else range(self.layers)
        return tuple(i not in dense for i in range(self.layers))

    @property
    def rotated_blocks(self) -> tuple[bool, ...]:
        """By block: whether it rotates queries and keys, where the model rotates any."""
        unrotated = frozenset(self.unrotated_layers or ())
        return tuple(i not in unrotated for i in range(self.layers))

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
        towers = (tower for tower in (self.encoder, self.images) if tower)
        return self._most_shares % tensor_degree == 0 and all(
            tower.divides(tensor_degree) for tower in towers
        )

    @property
    def _most_shares(self) -> int:
        """Largest number of devices that share heads and inner widths evenly."""
        return math.gcd(*self._heads, *self._widths, *self._adapter_edges)

    @property
    def _heads(self) -> tuple[int, ...]:
        """Heads of attention, and of the mixers of a pattern, each split over the group."""
        letters = set(self.pattern or "*")
        attends = (self.heads, self.key_value_heads) if letters & {"*", "H"} else ()
        if self.compressed:
            attends = self.heads, self.compressed.groups
        scans = (self.state_space.heads, self.state_space.groups) if self.state_space else ()
        deltas = (self.delta_net.heads, self.delta_net.key_heads) if self.delta_net else ()
        return (*attends, *scans, *deltas)

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
        if self.pattern and not {"-", "E"} & set(self.pattern):
            return ()
        if not self.experts:
            return (self.inner,)
        is_dense = self.experts.dense_layers or "-" in (self.pattern or "")
        own = (self.inner,) if is_dense else ()
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
        for tower in (self.encoder, self.images):
            if tower:
                tower.require_tensor_degree(
                    tensor_degree,
                    # Tokens of a tower before a language model stay whole.
                    sequence_parallel=sequence_parallel and not self.projector,
                    model=f"The encoder of {model}",
                )
        if tensor_degree < 1 or not self.divides(tensor_degree):
            shared = self._most_shares
            widths = " and ".join(map(str, self._widths))
            adapters = f", rank {self._adapter_edges[0]}" if self._adapter_edges else ""
            allowed = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
            if self.pattern:
                heads = ", ".join(map(str, self._heads))
                split = f"its heads and groups ({heads}) and feed-forward widths ({widths or 0})"
            else:
                split = (
                    f"its {self.heads} heads, {self.key_value_heads} key-value heads{adapters} and "
                    f"feed-forward width {widths}"
                )
            raise InputError(
                f"{model} cannot be split over {tensor_degree} devices: {split} have only the "
                f"common divisors {allowed}."
            )
        text_tokens = 0
        if self.diffusion and not self.diffusion.crosses:
            text_tokens = self.diffusion.text_tokens
        if sequence_parallel and text_tokens % tensor_degree:
            raise InputError(
                f"{model} cannot use sequence parallelism over {tensor_degree} devices: its "
                f"{text_tokens} tokens of text are not a multiple of "
                f"{tensor_degree}."
            )
        if sequence_parallel and self.sequence % tensor_degree:
            raise InputError(
                f"{model} cannot use sequence parallelism over {tensor_degree} devices: its "
                f"sequence of {self.sequence} tokens is not a multiple of {tensor_degree}."
            )

    def with_expert_capacity(self, capacity: float, *, model: str) -> TransformerConfig:
        """Return the shape with a fixed number of rows for every expert, 0 for those that come.

        Raises
        ------
        InputError
            If there cannot be as many, or no routed experts are there.
        """
        check_expert_capacity(capacity)
        if capacity == 0.0:
            return self
        if not self.experts:
            raise InputError(
                f"expert_capacity is {capacity}, but {model} has no routed experts; it must be 0."
            )
        return replace(self, experts=replace(self.experts, capacity=capacity))

    def require_expert_tensor(self, expert_tensor: int, *, model: str) -> None:
        """Refuse devices that cannot split every routed expert.

        Raises
        ------
        InputError
            If there are no routed experts, or their width cannot be split so.
        """
        if not self.experts:
            raise InputError(
                f"expert_tensor_parallel is {expert_tensor}, but {model} has no routed experts; it "
                "must be 0."
            )
        if self.experts.feed_forward % expert_tensor:
            raise InputError(
                f"expert_tensor_parallel is {expert_tensor}, but it must divide the width "
                f"{self.experts.feed_forward} of the experts of {model}."
            )

    def tensor_degrees(self) -> tuple[int, ...]:
        """Return those of `TENSOR_DEGREES` that divide the model."""
        return tuple(
            tensor_degree for tensor_degree in TENSOR_DEGREES if self.divides(tensor_degree)
        )


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

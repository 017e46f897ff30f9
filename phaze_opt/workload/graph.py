"""The workload as pure data: operators, layers, and a model captured at several tensor degrees.

Nothing here needs torch. Everything can be written to JSON and read back (`phaze_opt.codec`). All
sizes are of ONE device at the stated tensor degree, for ONE microbatch. A graph states the elements
and the type of every tensor; what operators move, and their edges, follow from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from phaze_opt.choices import Dispatcher
from phaze_opt.limits import MOST_SIZE
from phaze_opt.on_demand import cached_property, hashed_once
from phaze_opt.precision import ELEMENT_BYTES, Dtype, ProductPrecision
from phaze_opt.printing import PrintsAsTables

SCHEMA_VERSION = 7
"""Version of the JSON form of `Workload`; a file of a newer version is refused."""

Size = Annotated[int, Meta(ge=0)]
Elements = Annotated[int, Meta(ge=0, le=MOST_SIZE)]
Dimension = Annotated[int, Meta(ge=1, le=MOST_SIZE)]
Positive = Annotated[int, Meta(ge=1)]
"""Ranges of numbers: a file with another number is refused (`phaze_opt.codec`)."""

CollectiveKind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ring", "dispatch", "combine"
]

ELEMENTWISE_KINDS = (
    "add",
    "multiply",
    "copy",
    "fill",
    "compare",
    "select",
    "exponential",
    "rsqrt",
    "power",
    "tanh",
    "sigmoid",
    "relu",
    "gelu",
    "silu",
    "gelu_backward",
    "silu_backward",
    "relu_backward",
    "tanh_backward",
    "dropout",
    "dropout_backward",
    "elementwise",
    "quantise",
)
"""Kinds whose result depends only on the element of the operands at the same position."""

REARRANGING_KINDS = frozenset({"copy"})
"""Those among them that also stand for transposes and concatenations: elements change places."""

TensorKind = Literal["weight", "activation", "gradient", "weight_gradient", "unknown"]
"""What a tensor holds: a parameter or buffer, what the forward makes of the inputs, the gradient of
such, the gradient of a parameter; unknown in a file of an older program."""

VECTOR_KINDS = (
    *ELEMENTWISE_KINDS,
    "softmax",
    "softmax_backward",
    "log_softmax",
    "log_softmax_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "rotary",
    "embedding",
    "embedding_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "reduce",
    "gather",
    "scatter",
)
"""All kinds of vector work; each has one row in the vector operator table."""


@dataclass(frozen=True)
class Gemm:
    """``batch`` independent products of an ``m × k`` and a ``k × n`` matrix.

    Every element of the batch has its own second operand; a weight shared by the batch is
    expressed by folding the batch into ``m``. ``precision`` is what is multiplied, a name of
    `phaze_opt.precision.PRECISIONS`.
    """

    m: Dimension
    n: Dimension
    k: Dimension
    batch: Dimension = 1
    precision: ProductPrecision = "bf16"

    @property
    def flops(self) -> int:
        """Floating-point operations, two per multiply-accumulate."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class VectorWork:
    """Work on the vector cores: ``rows × columns`` elements of one kind of operator.

    ``kind`` is one of `VECTOR_KINDS`, whose cycles are in the vector operator table
    (`phaze_opt/estimator/data/vector_operators.toml`). Kinds with a reduction (norms, softmax,
    cross-entropy) reduce along the columns.
    """

    kind: str
    rows: Elements
    columns: Elements

    @property
    def elements(self) -> int:
        """Number of elements processed."""
        return self.rows * self.columns


@dataclass(frozen=True)
class TokenExchange:
    """How tokens go to the devices of their experts (dispatch), or results back (combine).

    Attributes
    ----------
    tokens, top_k, experts
        Tokens of a device, experts of each, and routed experts of the block.
    devices
        That share the experts out: as far apart in ranks as a tensor-parallel group is large.
    stride
        How far apart instead, where each expert is split over other devices than that group.
    row_bytes
        Of a token.
    dispatcher
        See `phaze_opt.training.Training`.
    plans
        Whether the layout is new: a backward sends as its forward did.
    groups, top_groups
        See `phaze_opt.workload.experts.Experts`.
    rows
        Of all experts, where each has a fixed number of them.
    """

    tokens: Dimension
    top_k: Dimension
    experts: Dimension
    devices: Dimension
    row_bytes: Dimension
    dispatcher: Dispatcher
    plans: bool
    groups: Dimension = 1
    top_groups: Dimension = 1
    stride: Dimension | UnsetType = UNSET
    rows: Dimension | UnsetType = UNSET

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows of all chosen experts."""
        return (self.rows or self.tokens * self.top_k) * self.row_bytes


@dataclass(frozen=True)
class ContextGroup:
    """Devices that share a sequence, as far apart in ranks as a tensor-parallel group is large.

    Attributes
    ----------
    devices
        How many they are.
    messages
        Messages that each sends to the next one in a ring, one after another.
    """

    devices: Dimension
    messages: Dimension = 1


@dataclass(frozen=True)
class Collective:
    """Communication among the devices of one group: tensor-parallel, of a sequence, or of experts.

    ``size_bytes`` is the size of the whole (unsharded) tensor, which each device holds after an
    all-gather, before a reduce-scatter, and before and after an all-reduce, and what a device holds
    before an all-to-all; of an ``exchange`` it is that of the rows of all chosen experts, of a
    ``ring`` that of all messages of a device. ``neighbours`` are the devices over which each expert
    is split, where they are not the tensor-parallel group.
    """

    kind: CollectiveKind
    size_bytes: Elements
    exchange: TokenExchange | UnsetType = UNSET
    context: ContextGroup | UnsetType = UNSET
    neighbours: Dimension | UnsetType = UNSET

    @property
    def is_tensor_parallel(self) -> bool:
        """Whether it is among the devices of a tensor-parallel group."""
        return not (self.exchange or self.context or self.neighbours)


@dataclass(frozen=True)
class AttentionScores:
    """Matrices of scores of a fused attention core: ``heads`` of them, ``queries × keys``.

    Attributes
    ----------
    heads
        Query heads of all samples.
    queries, keys
        Rows and columns of one matrix.
    causal
        Whether a query sees only the keys up to its own position (the last query sees all). With
        fewer keys than queries it sees the latest of them: a window. The operator counts its
        products in full; the estimator leaves out the masked tiles.
    """

    heads: Dimension
    queries: Dimension
    keys: Dimension
    causal: bool

    @property
    def elements(self) -> int:
        """Scores of all heads, masked ones included."""
        return self.heads * self.queries * self.keys

    @property
    def visible(self) -> int:
        """Scores of all heads that the mask leaves."""
        if not self.causal:
            return self.elements
        if self.keys < self.queries:
            # Each of the first queries of a window sees one key more than the one before.
            return self.heads * (self.queries * self.keys - self.keys * (self.keys - 1) // 2)
        # The last query sees all keys, each one before it sees one key less.
        seeing = min(self.queries, self.keys)
        return self.heads * (seeing * self.keys - seeing * (seeing - 1) // 2)


SCORE_KINDS = (
    *("softmax", "softmax_backward", "exponential"),
    *("tanh", "tanh_backward", "dropout", "dropout_backward"),
)
"""Vector work that fused attention does on scores; all else is on its operands and results."""


@hashed_once
@dataclass(frozen=True)
class Operator:
    """One scheduled unit of work.

    An operator with only ``gemms`` runs on a tensor core, with only ``vector`` on a vector core,
    with both on one of each (a fused operator), with a ``collective`` on the network; attention
    beside a message to the next device of a ring is on all of them. An operator without any of them
    takes no time.

    Attributes
    ----------
    id
        Unique in its graph; readable (the name of the ATen node).
    gemms
        Matrix products. There are several where the intermediate results stay on the chip: in a
        fused attention core, two in a forward and five in a backward, and in kernels of a delta
        net.
    vector
        Vector work in order of execution; beside a GEMM it is the epilogue (in fused attention the
        softmax).
    attention
        Scores of a fused attention core, which never leave the chip; ``None`` for all others.
    surplus_flops
        Those of ``flops`` that are no part of the model: on rows that only fill the tiles of a
        grouped product, and in products that every device of the tensor-parallel group repeats
        (all but one share of the group).
    skipped_flops
        What the model asks for besides, where attention counts in full: on blocks that a causal
        mask hides and no device computes.
    """

    id: str
    gemms: tuple[Gemm, ...] = ()
    vector: tuple[VectorWork, ...] = ()
    collective: Collective | None = None
    attention: AttentionScores | None = None
    surplus_flops: Size | UnsetType = UNSET
    skipped_flops: Size | UnsetType = UNSET

    @property
    def is_exchange(self) -> bool:
        """Whether it sends tokens to the devices of their experts, or results back."""
        return self.collective is not None and bool(self.collective.exchange)

    @property
    def flops(self) -> int:
        """Floating-point operations of the GEMMs (vector work is not counted, as usual for MFU)."""
        return sum(gemm.flops for gemm in self.gemms)

    @property
    def model_flops(self) -> int:
        """What the model asks for, attention in full."""
        return self.flops - (self.surplus_flops or 0) + (self.skipped_flops or 0)

    def is_on_scores(self, work: VectorWork) -> bool:
        """Whether vector work of it is done on every score of fused attention."""
        scores = self.attention
        return scores is not None and (
            work.kind in SCORE_KINDS and work.elements == scores.elements
        )

    @property
    def masked_flops(self) -> float:
        """The part of `model_flops` on scores that a causal mask hides, in fused attention."""
        scores = self.attention
        if scores is None or not scores.causal:
            return float(self.skipped_flops or 0)
        return self.flops * (1.0 - scores.visible / scores.elements)


@dataclass(frozen=True)
class TensorRead:
    """An operator that reads a tensor.

    Attributes
    ----------
    operator
        Index into the operators of the graph.
    elements
        Each distinct element counts once for every part of a fused operator.
    first_operand, second_operand
        Whether it is an operand of the operator's product, which may read it again and again.
    """

    operator: Size
    elements: Elements
    first_operand: bool = False
    second_operand: bool = False


@dataclass(frozen=True)
class Tensor:
    """Memory that operators of a graph read or write: compulsory HBM traffic.

    Attributes
    ----------
    elements
        All of them.
    dtype
        Type of an element.
    kind
        What it holds.
    writers
        ``(operator, elements)`` with indices into the operators of the graph. Without a writer it
        comes into the graph from outside.
    readers
        Operators that read it.
    outlives
        Whether it leaves the graph (boundary output, stash or gradient): fusion must still write
        it.
    """

    elements: Elements
    dtype: Dtype = "bf16"
    kind: TensorKind = "unknown"
    writers: tuple[tuple[Size, Elements], ...] = ()
    readers: tuple[TensorRead, ...] = ()
    outlives: bool = False

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def is_shared(self) -> bool:
        """Whether operators hand it over, or several of them read it from outside."""
        return bool(self.readers) and (bool(self.writers) or len(self.readers) > 1)

    def handed_over(self) -> Iterator[tuple[int, int, int]]:
        """Yield ``(writer, reader, elements)`` of all that one operator hands another."""
        for read in self.readers:
            for writer, written in self.writers:
                if writer < read.operator:
                    share = read.elements * written // self.elements if self.elements else 0
                    yield writer, read.operator, share


@hashed_once
@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order, and all tensors that they read or write.

    Attributes
    ----------
    operators
        In topological order.
    tensors
        Each memory once; every writer stands before its readers.
    """

    operators: tuple[Operator, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    @cached_property
    def edges(self) -> tuple[tuple[int, int, int], ...]:
        """``(source, destination, bytes)`` with indices into ``operators``, one per pair.

        Sorted by destination, then by source.
        """
        sizes: dict[tuple[int, int], int] = {}
        for tensor in self.tensors:
            if not (tensor.writers and tensor.readers):
                continue
            element_bytes = tensor.element_bytes
            for source, destination, elements in tensor.handed_over():
                pair = destination, source
                sizes[pair] = sizes.get(pair, 0) + elements * element_bytes
        return tuple([(source, to, size) for (to, source), size in sorted(sizes.items())])

    @cached_property
    def read_bytes(self) -> tuple[int, ...]:
        """Compulsory HBM traffic of every operator: each distinct tensor is read once."""
        read_bytes = [0] * len(self.operators)
        for tensor in self.tensors:
            for read in tensor.readers:
                read_bytes[read.operator] += read.elements * tensor.element_bytes
        return tuple(read_bytes)

    @cached_property
    def write_bytes(self) -> tuple[int, ...]:
        """Compulsory HBM traffic of every operator: each result is written once."""
        write_bytes = [0] * len(self.operators)
        for tensor in self.tensors:
            for writer, elements in tensor.writers:
                write_bytes[writer] += elements * tensor.element_bytes
        return tuple(write_bytes)

    @property
    def moved_bytes(self) -> tuple[int, ...]:
        """All compulsory HBM traffic of every operator."""
        return tuple(map(sum, zip(self.read_bytes, self.write_bytes, strict=True)))

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all GEMMs that the model asks for."""
        return sum(operator.model_flops for operator in self.operators)

    @cached_property
    def masked_flops(self) -> float:
        """The part of ``flops`` that causal masks hide."""
        return sum(operator.masked_flops for operator in self.operators)


@dataclass(frozen=True)
class BytesByRecompute:
    """A size of a layer, per microbatch, under each recompute."""

    none: Size
    selective: Size
    full: Size


@dataclass(frozen=True)
class Layer:
    """One distinct layer: its two operator graphs, its parameters and its memory.

    Attributes
    ----------
    name
        ``"embedding"``, ``"block"``, ``"head"``, or the name the user's module gives.
    forward, backward
        Graphs without any recompute; the backward has data- and weight-gradient products.
    selective_recompute
        The part of the forward that runs again before the backward under selective recompute (see
        `phaze_opt.workload.capture.selective_recompute`); empty where there is no attention.
    parameters
        Number of parameters on one device.
    tied_parameters
        Number of ``parameters`` that another layer holds too, stated by every holder (the embedding
        and the language-model head tied to it). A model counts them once; both stages hold them.
    stash_bytes
        Activations kept from the forward for the backward.
    transient_bytes
        Largest sum of live activations and gradients while the layer's forward or backward runs,
        without stash and parameters, where every operator is a kernel of its own. The arriving
        gradient counts, and so do operators that run again before the backward; a parameter's
        gradient counts until it has been added to its accumulator.
    fused_transient_bytes
        ``transient_bytes`` where a compiler fuses operators (fusion ``epilogue``): tensors between
        operators of one kernel are never in memory.
    output_bytes
        Activation passed to the next layers; the gradient that comes back has this size too.
    routed_parameters
        Number of ``parameters`` that belong to routed experts, which expert parallelism shards and
        synchronises over groups of their own; not set where there are none.
    expert_groups
        Into how many groups the experts are divided, and from how many of them those of a token
        are chosen; not set where from all.
    in_bf16
        Whether it stays in 16 bits where other layers run in a recipe with fewer, see
        `phaze_opt.workload.bf16_layers`; not set where it does as they do.
    offloaded_bytes
        What it keeps in tensors that wait on the host by name, under the recompute of a training
        (`phaze_opt.workload.recompute_parts`); not set in a captured layer.
    frozen_parameters
        Number of ``parameters`` that are not trained: they have no gradient and no state; not set
        where all are.
    frozen_tied_parameters
        Number of ``tied_parameters`` among them; not set where there are none.
    stops_gradients
        Set where neither the layer nor what is before it is trained: no gradient comes back to it,
        it keeps nothing for a backward, and nothing of it runs again.
    """

    name: str
    forward: OperatorGraph
    backward: OperatorGraph
    selective_recompute: OperatorGraph
    parameters: Size
    tied_parameters: Size
    stash_bytes: BytesByRecompute
    transient_bytes: BytesByRecompute
    fused_transient_bytes: BytesByRecompute
    output_bytes: Size
    routed_parameters: Size | UnsetType = UNSET
    expert_groups: tuple[Positive, Positive] | UnsetType = UNSET
    in_bf16: Literal[True] | UnsetType = UNSET
    offloaded_bytes: Size | UnsetType = UNSET
    frozen_parameters: Size | UnsetType = UNSET
    frozen_tied_parameters: Size | UnsetType = UNSET
    stops_gradients: Literal[True] | UnsetType = UNSET

    @property
    def has_backward(self) -> bool:
        """Whether gradients come back to it."""
        return not self.stops_gradients

    @property
    def training_flops(self) -> int:
        """As `WorkloadVariant.training_flops`, of a layer of a partly frozen model."""
        attends = any(each.attention for each in self.backward.operators)
        attention = sum(each.model_flops for each in self.forward.operators if each.attention)
        others = sum(each.model_flops for each in self.backward.operators if not each.attention)
        return self.forward.flops + others + 2 * attends * attention


@hashed_once
@dataclass(frozen=True)
class WorkloadVariant:
    """A model at one tensor degree and one microbatch.

    Attributes
    ----------
    context_parallel
        Devices that share every sequence: the layers are of one share of its tokens, still without
        the attention to the others (`phaze_opt.workload.context_parallel`). Not set for 1.
    expert_tensor
        Devices over which each routed expert is split; not set for the tensor-parallel group.
    expert_capacity
        Rows of an expert as in `phaze_opt.training.Training`; not set for the tokens that come.
    whole_memory
        Whether every device has all of another sequence that layers attend to, where devices share
        their own (a text beside a video); not set where nothing is known of it.
    layers
        The distinct layers.
    nodes
        The model's layers in topological order: ``(instance name, index into layers)``.
    edges
        ``(source, destination, bytes)`` between ``nodes``: activations, per device.
    """

    tensor_parallel: Positive
    microbatch: Positive
    sequence_parallel: bool
    layers: tuple[Layer, ...]
    nodes: Annotated[tuple[tuple[str, Size], ...], Meta(min_length=1)]
    edges: tuple[tuple[Size, Size, Size], ...]
    context_parallel: Positive | UnsetType = UNSET
    expert_tensor: Positive | UnsetType = UNSET
    expert_capacity: float | UnsetType = UNSET
    whole_memory: Literal[True] | UnsetType = UNSET

    @property
    def options(self) -> tuple[int, int, bool, int, int, float]:
        """What it was captured for: tensor degree, microbatch, how sequences and experts are split.

        Experts as in `phaze_opt.training.Training`, but as the tensor-parallel group's where that
        is the same.
        """
        split = self.sequence_parallel, self.context_parallel or 1, self.expert_tensor or 0
        return self.tensor_parallel, self.microbatch, *split, self.expert_capacity or 0.0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple([name for name, _ in self.nodes])

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Which of the distinct layers each layer is."""
        return tuple([index for _, index in self.nodes])

    @cached_property
    def precedences(self) -> tuple[tuple[int, int], ...]:
        """The edges without their bytes."""
        return tuple([(source, destination) for source, destination, _ in self.edges])

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Occurrences of each distinct layer."""
        occurrences = [0] * len(self.layers)
        for _, index in self.nodes:
            occurrences[index] += 1
        return tuple(occurrences)

    @property
    def forward_flops(self) -> int:
        """GEMM FLOPs of one forward pass of one microbatch on one device of the group."""
        return sum(
            count * layer.forward.flops
            for count, layer in zip(self.counts, self.layers, strict=True)
        )

    @property
    def is_partly_frozen(self) -> bool:
        """Whether some of the parameters are not trained."""
        return any(layer.frozen_parameters for layer in self.layers)

    @property
    def training_flops(self) -> float:
        """GEMM FLOPs that training asks for, as `forward_flops`: three times as many if all train.

        Of a partly frozen model those of the captured backward count; of fused attention, whose
        backward computes its scores again, twice those of the forward.
        """
        if not self.is_partly_frozen:
            return 3.0 * self.forward_flops
        counted = zip(self.counts, self.layers, strict=True)
        return float(sum(count * layer.training_flops for count, layer in counted))

    @property
    def masked_flops_share(self) -> float:
        """Share of `forward_flops` that causal masks hide in fused attention, about half of it.

        An eager core computes all of its products and is counted in full.
        """
        masked = sum(
            count * layer.forward.masked_flops
            for count, layer in zip(self.counts, self.layers, strict=True)
        )
        return masked / self.forward_flops if masked else 0.0


def expert_tensor_of(tensor: int, expert_tensor: int) -> int:
    """Return over how many devices each expert is split, 0 for the tensor-parallel group's."""
    return 0 if expert_tensor == tensor else expert_tensor


@dataclass(frozen=True, repr=False)
class Workload(PrintsAsTables):
    """A captured model at several tensor degrees and microbatches.

    Attributes
    ----------
    model
        The string that names it (`phaze_opt.workload.zoo`).
    sequence
        Tokens per sample; 1 where a sample is not a sequence, or its length is not known.
    parameters
        Number of parameters of the whole model; tied weights count once.
    variants
        One per captured ``(tensor_parallel, microbatch, sequence_parallel, context_parallel,
        expert_tensor, expert_capacity)``.
    active_parameters
        Those among ``parameters`` that work on a token; not set where all of them do.
    """

    model: str
    sequence: Positive
    parameters: Size
    variants: Annotated[tuple[WorkloadVariant, ...], Meta(min_length=1)]
    schema_version: int = SCHEMA_VERSION
    active_parameters: Size | UnsetType = UNSET

    def __repr__(self) -> str:
        def listed(values: Iterable[int]) -> str:
            return "/".join(map(str, sorted(set(values)))) or "none"

        tensor_degrees = listed(variant.tensor_parallel for variant in self.variants)
        microbatches = listed(variant.microbatch for variant in self.variants)
        return (
            f"Workload({self.model!r}, {self.parameters:,} parameters, sequence {self.sequence}, "
            f"tensor degrees {tensor_degrees}, microbatches {microbatches})"
        )

    def variants_for(
        self,
        microbatch: int,
        sequence_parallel: bool = False,
        context_parallel: int = 1,
        expert_tensor: int = 0,
        expert_capacity: float = 0.0,
    ) -> Iterator[WorkloadVariant]:
        """Yield the captured variants of one microbatch, by rising tensor degree.

        Tensor degree 1 is among them for either value of ``sequence_parallel``: one device has the
        whole sequence.
        """
        for variant in sorted(self.variants, key=lambda v: v.tensor_parallel):
            if variant.microbatch != microbatch:
                continue
            if (variant.context_parallel or 1) != context_parallel:
                continue
            if (variant.expert_capacity or 0.0) != expert_capacity:
                continue
            if (variant.expert_tensor or 0) != expert_tensor_of(
                variant.tensor_parallel, expert_tensor
            ):
                continue
            if variant.tensor_parallel == 1 or variant.sequence_parallel == sequence_parallel:
                yield variant


@lru_cache(maxsize=512)
def side_by_side(graphs: tuple[OperatorGraph, ...]) -> OperatorGraph:
    """Return graphs as one, with nothing between them, cached; operators are named by place."""
    operators: list[Operator] = []
    tensors: list[Tensor] = []
    for graph in graphs:
        first = len(operators)
        operators += [
            replace(operator, id=f"{operator.id} {first + place}")
            for place, operator in enumerate(graph.operators)
        ]
        tensors += [
            replace(
                tensor,
                writers=tuple([(first + writer, elements) for writer, elements in tensor.writers]),
                readers=tuple(
                    [replace(read, operator=first + read.operator) for read in tensor.readers]
                ),
            )
            for tensor in graph.tensors
        ]
    return OperatorGraph(tuple(operators), tuple(tensors))

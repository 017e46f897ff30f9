"""The workload as pure data: operators, layers, and a model captured at several widths.

Nothing here needs torch. Everything can be written to JSON and read back (`phaze_opt.codec`). All
sizes are of ONE device at the stated tensor-parallel width, for ONE microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from phaze_opt.on_demand import cached_property, hashed_once
from phaze_opt.printing import PrintsAsTables

SCHEMA_VERSION = 4
"""Version of the JSON form of `Workload`; a file of a newer version is refused."""

CollectiveKind = Literal["all_reduce", "reduce_scatter", "all_gather"]

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
)
"""Kinds whose result depends only on the element of the operands at the same position."""

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
    """``batch`` independent products of an ``m × k`` and a ``k × n`` matrix (bf16).

    Every element of the batch has its own second operand; a weight shared by the batch is
    expressed by folding the batch into ``m``.
    """

    m: int
    n: int
    k: int
    batch: int = 1

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
    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Number of elements processed."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Collective:
    """Communication among the devices of one tensor-parallel group.

    ``size_bytes`` is the size of the whole (unsharded) tensor, which each device holds after an
    all-gather, before a reduce-scatter, and before and after an all-reduce.
    """

    kind: CollectiveKind
    size_bytes: int


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

    heads: int
    queries: int
    keys: int
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


@hashed_once
@dataclass(frozen=True)
class Operator:
    """One scheduled unit of work.

    An operator with only ``gemms`` runs on a tensor core, with only ``vector`` on a vector core,
    with both on one of each (a fused operator), with a ``collective`` on the network. An operator
    without any of them takes no time.

    Attributes
    ----------
    id
        Unique in its graph; readable (the name of the ATen node).
    gemms
        Matrix products. There are several only in a fused attention core, whose intermediate
        results stay on the chip: two in a forward, five in a backward.
    vector
        Vector work in order of execution; beside a GEMM it is the epilogue (in fused attention the
        softmax).
    attention
        Scores of a fused attention core, which never leave the chip; ``None`` for all others.
    read_bytes, write_bytes
        Compulsory HBM traffic: each distinct tensor is read once, each result is written once.
    outliving_bytes
        The part of ``write_bytes`` that leaves the graph (boundary output, stash or gradient);
        fusion must still write it.
    """

    id: str
    gemms: tuple[Gemm, ...] = ()
    vector: tuple[VectorWork, ...] = ()
    collective: Collective | None = None
    read_bytes: int = 0
    write_bytes: int = 0
    outliving_bytes: int = 0
    attention: AttentionScores | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations of the GEMMs (vector work is not counted, as usual for MFU)."""
        return sum(gemm.flops for gemm in self.gemms)

    @property
    def masked_flops(self) -> float:
        """The part of ``flops`` on scores that a causal mask hides; 0 without fused attention."""
        scores = self.attention
        if scores is None or not scores.causal:
            return 0.0
        return self.flops * (1.0 - scores.visible / scores.elements)


@dataclass(frozen=True)
class TensorRead:
    """An operator that reads a tensor.

    Attributes
    ----------
    operator
        Index into the operators of the graph.
    bytes
        Each distinct element counts once for every part of a fused operator.
    first_operand, second_operand
        Whether it is an operand of the operator's product, which may read it again and again.
    """

    operator: int
    bytes: int
    first_operand: bool = False
    second_operand: bool = False


@dataclass(frozen=True)
class SharedTensor:
    """Memory that operators of a graph hand over or read several times: it may stay on the chip.

    Attributes
    ----------
    size_bytes
        All of it.
    writers
        ``(operator, bytes)`` with indices into the operators of the graph. Without a writer it
        comes into the graph from outside.
    readers
        Operators that read it.
    outlives
        Whether it leaves the graph (boundary output, stash or gradient).
    """

    size_bytes: int
    writers: tuple[tuple[int, int], ...]
    readers: tuple[TensorRead, ...]
    outlives: bool = False


@hashed_once
@dataclass(frozen=True)
class OperatorGraph:
    """Operators in topological order and the tensors between them.

    Attributes
    ----------
    operators
        In topological order.
    edges
        ``(source, destination, bytes)`` with indices into ``operators``, source before
        destination, at most one edge per pair.
    tensors
        What operators hand over, and what several of them read from outside; empty in a file that
        an older program wrote.
    """

    operators: tuple[Operator, ...] = ()
    edges: tuple[tuple[int, int, int], ...] = ()
    tensors: tuple[SharedTensor, ...] = ()

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of all GEMMs."""
        return sum(operator.flops for operator in self.operators)

    @cached_property
    def masked_flops(self) -> float:
        """The part of ``flops`` that causal masks hide."""
        return sum(operator.masked_flops for operator in self.operators)


@dataclass(frozen=True)
class BytesByRecompute:
    """A size of a layer, per microbatch, under each recompute."""

    none: int
    selective: int
    full: int


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
    """

    name: str
    forward: OperatorGraph
    backward: OperatorGraph
    selective_recompute: OperatorGraph
    parameters: int
    tied_parameters: int
    stash_bytes: BytesByRecompute
    transient_bytes: BytesByRecompute
    fused_transient_bytes: BytesByRecompute
    output_bytes: int


@hashed_once
@dataclass(frozen=True)
class WorkloadVariant:
    """A model at one tensor-parallel width and one microbatch.

    Attributes
    ----------
    layers
        The distinct layers.
    nodes
        The model's layers in topological order: ``(instance name, index into layers)``.
    edges
        ``(source, destination, bytes)`` between ``nodes``: activations, per device.
    """

    tensor_parallel: int
    microbatch: int
    sequence_parallel: bool
    layers: tuple[Layer, ...]
    nodes: tuple[tuple[str, int], ...]
    edges: tuple[tuple[int, int, int], ...]

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
    def masked_flops_share(self) -> float:
        """Share of `forward_flops` that causal masks hide in fused attention, about half of it.

        An eager core computes all of its products and is counted in full.
        """
        masked = sum(
            count * layer.forward.masked_flops
            for count, layer in zip(self.counts, self.layers, strict=True)
        )
        return masked / self.forward_flops if masked else 0.0


@dataclass(frozen=True, repr=False)
class Workload(PrintsAsTables, tables="phaze_opt.report.tables:workload_tables"):
    """A captured model at several tensor-parallel widths and microbatches.

    Attributes
    ----------
    model
        The string that names it (`phaze_opt.workload.zoo`).
    sequence
        Tokens per sample; 1 where a sample is not a sequence, or its length is not known.
    parameters
        Number of parameters of the whole model; tied weights count once.
    variants
        One per captured ``(tensor_parallel, microbatch, sequence_parallel)``.
    """

    model: str
    sequence: int
    parameters: int
    variants: tuple[WorkloadVariant, ...]
    schema_version: int = SCHEMA_VERSION

    def __repr__(self) -> str:
        def listed(values: Iterable[int]) -> str:
            return "/".join(map(str, sorted(set(values)))) or "none"

        widths = listed(variant.tensor_parallel for variant in self.variants)
        microbatches = listed(variant.microbatch for variant in self.variants)
        return (
            f"Workload({self.model!r}, {self.parameters:,} parameters, sequence {self.sequence}, "
            f"tensor-parallel widths {widths}, microbatches {microbatches})"
        )

    def variants_for(
        self, microbatch: int, sequence_parallel: bool = False
    ) -> Iterator[WorkloadVariant]:
        """Yield the captured variants of one microbatch, by rising tensor-parallel width.

        Width 1 is among them for either value of ``sequence_parallel``: one device has the whole
        sequence.
        """
        for variant in sorted(self.variants, key=lambda v: v.tensor_parallel):
            if variant.microbatch != microbatch:
                continue
            if variant.tensor_parallel == 1 or variant.sequence_parallel == sequence_parallel:
                yield variant

"""A captured model whose sequences are shared among devices, with the attention between them.

The capture (`phaze_opt.workload.zoo.load_workload`) has a share of the tokens on every device, and
these attend to themselves: all of a layer but attention is that of the share. With c devices, b
samples and L = sequence / c tokens of each, fused attention becomes:

* ``ring`` (H. Liu et al. 2023, arXiv 2310.01889): keys and values of a device's share, ``b · L ·
  kv_heads · (key + value elements) · 2`` bytes, go around the group in c − 1 messages, each beside
  the attention to the share that came before it. The backward sends the gradients of keys and
  values after them, as many bytes again, so that they are complete where they belong.
* ``gather`` (A. Grattafiori et al. 2024, section 3.3.2): keys and values are gathered before the
  attention, again before its backward, and their gradients are scattered after it.
* ``a2a`` (S. A. Jacobs et al. 2023, arXiv 2309.14509): an all-to-all gives every device all tokens
  of a c-th of the heads, another one gives the result back; key and value heads that are fewer
  than devices are copied.

Under a causal mask, ring and gather balance the work: a device has the i-th and the i-th last of 2c
chunks of a sequence (zigzag), so that it computes the triangle of its own share and half of the
block of its queries with the keys of each other device. All devices compute the same.

Of a ring, the c − 2 equal steps in the middle are one operator with as many heads: it takes as long
as they do one after another, but for waves of tiles that they do not fill, and for their launches.
A merged step reads the queries and half of the keys; the last step of a forward weighs and adds up
the results of all.

Attention to another sequence that every device has whole (`WorkloadVariant.whole_memory`) stays as
captured: its queries are a share, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from phaze_opt.choices import ContextKind
from phaze_opt.errors import InputError
from phaze_opt.training import Training
from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.graph import (
    AttentionScores,
    BytesByRecompute,
    Collective,
    CollectiveKind,
    ContextGroup,
    Layer,
    Operator,
    OperatorGraph,
    Tensor,
    TensorKind,
    TensorRead,
    VectorWork,
    WorkloadVariant,
)

_ELEMENT_BYTES = 2
"""Of queries, keys, values, results and their gradients, which are sent in bf16."""


@dataclass(frozen=True)
class _Split:
    """Among how many devices a sequence is shared, and how they attend to all of it."""

    devices: int
    kind: ContextKind
    samples: int
    whole_memory: bool = False

    def shares(self, operator: Operator) -> bool:
        """Say whether an operator attends to tokens that are shared: not to a whole memory."""
        scores = operator.attention
        if scores is None:
            return False
        return scores.causal or scores.keys == scores.queries or not self.whole_memory


def with_context_shared_out(
    variants: Sequence[WorkloadVariant], training: Training
) -> list[WorkloadVariant]:
    """Return a model as the devices of a context-parallel group have it.

    Parameters
    ----------
    variants
        As captured at some tensor degrees, of one share of the tokens of every sample.
    training
        Says how the devices attend to all tokens.

    Returns
    -------
    Those whose attention can be shared out so.

    Raises
    ------
    InputError
        If there are variants, but none is among them.
    """
    shared: list[WorkloadVariant] = []
    refused: InputError | None = None
    for variant in variants:
        devices = variant.context_parallel or 1
        whole_memory = bool(variant.whole_memory)
        split = _Split(devices, training.context_kind, variant.microbatch, whole_memory)
        try:
            shared.append(variant if devices == 1 else _shared_out(variant, split))
        except InputError as error:
            refused = error
    if refused is not None and not shared:
        raise refused
    return shared


@lru_cache(maxsize=64)
def _shared_out(variant: WorkloadVariant, split: _Split) -> WorkloadVariant:
    """Share every layer out; see `with_context_shared_out`."""
    return replace(variant, layers=tuple([_layer(layer, split) for layer in variant.layers]))


def _layer(layer: Layer, split: _Split) -> Layer:
    """Share the attention of a layer out, and count what it holds for that."""
    attending = [each for each in layer.forward.operators if split.shares(each)]
    if not attending:
        return layer
    shapes = [_shape(each, split) for each in attending]
    kept = sum(_kept_bytes(shape, split) for shape in shapes)
    # One attention runs at a time.
    used = max(_used_bytes(shape, split) for shape in shapes)

    def more(sizes: BytesByRecompute, beside: int, again: int) -> BytesByRecompute:
        return BytesByRecompute(sizes.none + beside, sizes.selective + beside, sizes.full + again)

    return replace(
        layer,
        forward=_graph(layer.forward, split),
        backward=_graph(layer.backward, split),
        selective_recompute=_graph(layer.selective_recompute, split),
        stash_bytes=more(layer.stash_bytes, kept, 0),
        transient_bytes=more(layer.transient_bytes, used, used + kept),
        fused_transient_bytes=more(layer.fused_transient_bytes, used, used + kept),
    )


def _graph(graph: OperatorGraph, split: _Split) -> OperatorGraph:
    """Share every fused attention of a pass out, from the last to the first."""
    share = {"ring": _ring, "gather": _gather, "a2a": _all_to_all}[split.kind]
    for index in reversed(range(len(graph.operators))):
        operator = graph.operators[index]
        if split.shares(operator):
            graph = share(_Attention(graph, index, _shape(operator, split), split))
    return graph


def _shape(operator: Operator, split: _Split) -> AttentionShape:
    """Return the sizes of a fused attention, of the share of the tokens."""
    scores, first, second = operator.attention, *operator.gemms[:2]
    assert scores is not None
    window = scores.keys if scores.causal and scores.keys < scores.queries else 0
    shape = AttentionShape(
        batch=split.samples,
        queries=scores.queries,
        keys=scores.queries if window else scores.keys,
        heads=scores.heads // split.samples,
        kv_heads=first.batch // split.samples,
        head_dim=first.k,
        causal=scores.causal,
        window=window,
        value_dim=second.n if second.n != first.k else 0,
    )
    if shape.keys != shape.queries:
        raise InputError(
            "context_parallel shares out self-attention, but a layer attends to another sequence; "
            "it must be 1."
        )
    _refuse(shape, split)
    return shape


def _refuse(shape: AttentionShape, split: _Split) -> None:
    """Refuse an attention that cannot be shared out in some way."""
    if split.kind == "a2a" and shape.heads % split.devices:
        raise InputError(
            f"context_parallel is {split.devices}, but with an all-to-all it must divide the "
            f"{shape.heads} heads of a device."
        )
    if split.kind == "a2a" and shape.kv_heads % split.devices and split.devices % shape.kv_heads:
        raise InputError(
            f"context_parallel is {split.devices}, but with an all-to-all it must divide the "
            f"{shape.kv_heads} key and value heads of a device, or be a multiple of them."
        )
    if split.kind == "ring" and shape.window:
        raise InputError(
            f"context_kind is ring, but a layer attends to the latest {shape.window} tokens only; "
            "it must be a2a or gather."
        )
    if split.kind != "a2a" and shape.causal and shape.queries % 2:
        raise InputError(
            f"context_parallel is {split.devices}, which leaves {shape.queries} tokens of a sample "
            f"on a device; with context_kind {split.kind} these must be two chunks."
        )


def _sent_heads(shape: AttentionShape, split: _Split) -> int:
    """Return the key heads that an all-to-all sends: every device gets one at least."""
    return max(shape.kv_heads, split.devices)


def _kv_elements(shape: AttentionShape, kv_heads: int) -> int:
    """Return the elements of keys and values of some heads of a share of the tokens."""
    return shape.batch * shape.keys * kv_heads * (shape.head_dim + shape.width)


def _head_elements(shape: AttentionShape, width: int) -> int:
    """Return the elements of all query heads of a share of the tokens."""
    return shape.batch * shape.queries * shape.heads * width


def _kept_bytes(shape: AttentionShape, split: _Split) -> int:
    """Return what an attention keeps for its backward beside what it keeps without sharing.

    After an all-to-all the result is kept as attention gave it and as the projection reads it, and
    copied key and value heads are kept.
    """
    if split.kind != "a2a":
        return 0
    copies = _sent_heads(shape, split) - shape.kv_heads
    result = _head_elements(shape, shape.width)
    return _ELEMENT_BYTES * (result + _kv_elements(shape, copies))


def _used_bytes(shape: AttentionShape, split: _Split) -> int:
    """Return what an attention holds more while its backward runs, of all devices the same.

    A ring has the next keys and values and their arriving gradients, a gather those of the others.
    An all-to-all has the gradients of queries, keys and values once more.
    """
    kv = _kv_elements(shape, shape.kv_heads)
    if split.kind == "ring":
        return _ELEMENT_BYTES * 2 * kv
    if split.kind == "gather":
        return _ELEMENT_BYTES * 2 * (split.devices - 1) * kv
    queries = _head_elements(shape, shape.head_dim)
    return _ELEMENT_BYTES * (queries + _kv_elements(shape, _sent_heads(shape, split)))


class _Step(NamedTuple):
    """A part of a shared attention.

    Attributes
    ----------
    name
        What follows the name of the attention.
    shape
        Its sizes; ``None`` of a step that only communicates.
    collective
        What it sends meanwhile.
    skips
        Whether a mask hides as many scores again, which it does not compute.
    """

    name: str
    shape: AttentionShape | None
    collective: Collective | None = None
    skips: bool = False


@dataclass(frozen=True)
class _Attention:
    """A fused attention of a graph, to be replaced by steps.

    Attributes
    ----------
    graph, index
        Where it is.
    shape, split
        Its sizes, and how it is shared out.
    """

    graph: OperatorGraph
    index: int
    shape: AttentionShape
    split: _Split

    @property
    def operator(self) -> Operator:
        """The attention."""
        return self.graph.operators[self.index]

    @property
    def is_backward(self) -> bool:
        """Whether it is that of a backward."""
        return len(self.operator.gemms) > 2

    @property
    def kv_elements(self) -> int:
        """Elements of the keys and values of the share."""
        return _kv_elements(self.shape, self.shape.kv_heads)

    @property
    def _makes(self) -> TensorKind:
        """What it makes."""
        return "gradient" if self.is_backward else "activation"

    @property
    def read_elements(self) -> int:
        """Elements that it reads."""
        reads = (read for tensor in self.graph.tensors for read in tensor.readers)
        return sum(read.elements for read in reads if read.operator == self.index)

    @property
    def written_elements(self) -> int:
        """Elements that it writes."""
        writers = (writer for tensor in self.graph.tensors for writer in tensor.writers)
        return sum(elements for writer, elements in writers if writer == self.index)

    def collective(self, kind: CollectiveKind, elements: int, messages: int = 1) -> Collective:
        """Return what the group sends."""
        group = ContextGroup(self.split.devices, messages)
        return Collective(kind, elements * _ELEMENT_BYTES, context=group)

    def block(self, blocks: int, times: int = 1) -> AttentionShape:
        """Return the attention to blocks of other devices, some times: half of it if causal."""
        keys = blocks * self.shape.keys
        keys = keys // 2 if self.shape.causal else keys
        return replace(self.shape, batch=self.shape.batch * times, keys=keys, causal=False)

    def operators(self, steps: Sequence[_Step]) -> list[Operator]:
        """Return the operators of the graph with steps instead of the attention."""
        own = [self._operator(step) for step in steps]
        before, after = self.graph.operators[: self.index], self.graph.operators[self.index + 1 :]
        return [*before, *own, *after]

    def _operator(self, step: _Step) -> Operator:
        """Return a step as an operator."""
        name = f"{self.operator.id}{step.name}"
        if step.shape is None:
            return Operator(name, collective=step.collective)
        kinds = {work.kind for work in self.operator.vector}
        work = backward_work if self.is_backward else forward_work
        gemms, vector = work(step.shape, dropout="dropout" in kinds, softcap="tanh" in kinds)
        scores: AttentionScores = step.shape.scores
        operator = Operator(name, gemms, vector, step.collective, scores)
        if not step.skips:
            return operator
        return replace(operator, skipped_flops=operator.flops)

    def tensors(
        self, steps: int, reads: Sequence[float], writes: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield the tensors of the graph among steps that replace the attention.

        Parameters
        ----------
        steps
            How many there are.
        reads, writes
            How often each step reads each tensor that the attention reads, and which share of
            those that it writes each step writes.
        """
        for tensor in self.graph.tensors:
            writers: list[tuple[int, int]] = []
            for writer, elements in tensor.writers:
                if writer != self.index:
                    writers.append((self._place(writer, steps), elements))
                    continue
                parts = [round(elements * share) for share in writes]
                parts[-1] += elements - sum(parts)  # rounding loses no element
                writers += [(self.index + i, part) for i, part in enumerate(parts) if part > 0]
            readers: list[TensorRead] = []
            for read in tensor.readers:
                if read.operator != self.index:
                    readers.append(replace(read, operator=self._place(read.operator, steps)))
                    continue
                readers += [
                    replace(read, operator=self.index + i, elements=round(read.elements * share))
                    for i, share in enumerate(reads)
                    if share > 0.0
                ]
            yield replace(tensor, writers=tuple(writers), readers=tuple(readers))

    def _place(self, operator: int, steps: int) -> int:
        """Return the place of another operator behind or before the steps."""
        return operator if operator < self.index else operator + steps - 1

    def handed_on(self, step: int, written: int, read: int, reader: int | None = None) -> Tensor:
        """Return elements that a step makes or receives for another one, by default the next."""
        to = step + 1 if reader is None else reader
        reads = (TensorRead(self.index + to, read),)
        return Tensor(written, "bf16", self._makes, ((self.index + step, written),), reads)


def _ring(attention: _Attention) -> OperatorGraph:
    """Send keys and values around the group, beside the attention to those that came before."""
    return _ring_backward(attention) if attention.is_backward else _ring_forward(attention)


def _ring_forward(attention: _Attention) -> OperatorGraph:
    """Attend to the own share first, to the others as they come; the last step joins results."""
    others, kv = attention.split.devices - 1, attention.kv_elements
    skips = attention.shape.causal
    steps = [_Step("", attention.shape, attention.collective("ring", kv))]
    middle = others - 1
    if middle:
        sent = attention.collective("ring", middle * kv, middle)
        steps.append(_Step("_others", attention.block(1, middle), sent, skips))
    steps.append(_Step("_last", attention.block(1), skips=skips))
    used = kv // 2 if skips else kv  # of a block that has come
    share = kv / attention.read_elements
    # The own keys and values are read once more to be sent.
    reads = [1.0 + share, *([(1.0 - share) * middle] if middle else []), 1.0 - share]
    writes = [0.0] * (len(steps) - 1) + [1.0]
    tensors = list(attention.tensors(len(steps), reads, writes))
    last = len(steps) - 1
    results = attention.written_elements
    if middle:
        tensors.append(attention.handed_on(0, kv, middle * (used + kv)))
        tensors.append(attention.handed_on(0, results, results, last))
        tensors.append(attention.handed_on(1, middle * (kv + results), used + middle * results))
    else:
        tensors.append(attention.handed_on(0, kv + results, used + results))
    operators = attention.operators(steps)
    joining = operators[attention.index + last]
    rows = attention.shape.batch * attention.shape.heads * attention.shape.queries
    width, parts = attention.shape.width, others + 1
    joins = VectorWork("multiply", parts * rows, width), VectorWork("add", others * rows, width)
    operators[attention.index + last] = replace(joining, vector=(*joining.vector, *joins))
    return OperatorGraph(tuple(operators), tuple(tensors))


def _ring_backward(attention: _Attention) -> OperatorGraph:
    """Begin with the share that came last in the forward; the own one, with its gradients, ends."""
    others, kv = attention.split.devices - 1, attention.kv_elements
    skips, middle = attention.shape.causal, others - 1
    steps = [_Step("_first", attention.block(1), attention.collective("ring", kv), skips)]
    if middle:
        sent = attention.collective("ring", 2 * middle * kv, middle)
        steps.append(_Step("_others", attention.block(1, middle), sent, skips))
    # The gradients of its own keys and values are sent on by the device that has them before.
    steps.append(_Step("", attention.shape, attention.collective("ring", kv)))
    used = kv // 2 if skips else kv
    share = kv / attention.read_elements
    first = 1.0 - share + (used + kv) / attention.read_elements
    reads = [first, *([(1.0 - share) * middle] if middle else []), 1.0 - share]
    writes = [0.0] * (len(steps) - 1) + [1.0]
    tensors = list(attention.tensors(len(steps), reads, writes))
    made = attention.written_elements
    if middle:
        tensors.append(attention.handed_on(0, kv + made, middle * (used + kv + made)))
        tensors.append(attention.handed_on(1, middle * (2 * kv + made), 2 * kv + made))
    else:
        tensors.append(attention.handed_on(0, kv + made, kv + made))
    return OperatorGraph(tuple(attention.operators(steps)), tuple(tensors))


def _gather(attention: _Attention) -> OperatorGraph:
    """Gather keys and values, and scatter their gradients."""
    others, kv, shape = attention.split.devices - 1, attention.kv_elements, attention.shape
    whole = (others + 1) * kv
    steps = [_Step("_gather", None, attention.collective("all_gather", whole))]
    share = kv / attention.read_elements
    steps.append(_Step("", shape))
    if shape.window:
        # The gathered keys that the window reaches are as many as the own ones.
        parts = [1.0]
    else:
        steps.append(_Step("_others", attention.block(others), skips=shape.causal))
        parts = [0.5, 0.5]
    # Each part reads its queries; the first one reads the own keys and values.
    own = [part * (1.0 - share) for part in parts]
    reads, writes = [share, own[0] + share, *own[1:]], [0.0, *parts]
    if attention.is_backward:
        steps.append(_Step("_scatter", None, attention.collective("reduce_scatter", whole)))
        of_kv = kv / attention.written_elements
        reads.append(0.0)
        writes = [0.0, *[part * (1.0 - of_kv) for part in parts], of_kv]
    tensors = list(attention.tensors(len(steps), reads, writes))
    last = attention.index + len(parts)
    if not shape.window:
        used = others * kv // 2 if shape.causal else others * kv
        gathered = ((attention.index, whole - kv),)
        readers = (TensorRead(last, used),)
        tensors.append(Tensor(whole - kv, "bf16", "activation", gathered, readers))
    if attention.is_backward:
        made = [(attention.index + 1, kv)]
        made += [(last, whole - kv)] if len(parts) > 1 else []
        total = sum(elements for _, elements in made)
        scattered = (TensorRead(last + 1, total),)
        tensors.append(Tensor(total, "bf16", "gradient", tuple(made), scattered))
    return OperatorGraph(tuple(attention.operators(steps)), tuple(tensors))


def _all_to_all(attention: _Attention) -> OperatorGraph:
    """Give every device all tokens of some heads, and the result back to those of the tokens."""
    shape, devices = attention.shape, attention.split.devices
    queries, results = _head_elements(shape, shape.head_dim), _head_elements(shape, shape.width)
    sent_kv = _kv_elements(shape, _sent_heads(shape, attention.split))
    there, back = queries + sent_kv, results
    if attention.is_backward:
        there, back = back, there
    by_heads = replace(
        shape,
        queries=devices * shape.queries,
        keys=devices * shape.keys,
        heads=shape.heads // devices,
        kv_heads=_sent_heads(shape, attention.split) // devices,
    )
    steps = [
        _Step("_to_heads", None, attention.collective("all_to_all", there)),
        _Step("", by_heads),
        _Step("_to_tokens", None, attention.collective("all_to_all", back)),
    ]
    # A forward sends all that it reads; a backward has kept that, and sends the gradient.
    sent = results / attention.read_elements if attention.is_backward else 1.0
    tensors = list(attention.tensors(3, [sent, 1.0 - sent, 0.0], [0.0, 0.0, 1.0]))
    tensors.append(attention.handed_on(0, there, there))
    tensors.append(attention.handed_on(1, back, back))
    return OperatorGraph(tuple(attention.operators(steps)), tuple(tensors))

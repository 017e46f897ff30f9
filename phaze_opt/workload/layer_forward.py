"""The captured forward of a layer: which operators are what, and what runs again of it.

`LayerForward` knows attention, linear layers, norms and experts by what they compute and by what
reads what, whatever the model calls them. Parts that run again (`recompute_parts`) and tensors that
are kept or sent to the host by name (`named_tensors`) are both told apart by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from phaze_opt.on_demand import cached_property
from phaze_opt.workload.graph import BytesByRecompute, Layer, OperatorGraph

_NORMS = ("rms_norm", "layer_norm")
_ACTIVATIONS = ("gelu", "relu", "silu")
SORTED_ROWS, EXPERT_ACTIVATION = "permute_rows", "expert_activation"
LATENT = "latent_keys_and_values", "compressed_attention"
_BESIDE_QUERIES = "index_keys", "compress"
"""Beginnings of the names of kernels that give attention something else than up-projections do."""
_ROUTED = ("route", SORTED_ROWS, "combine_rows", EXPERT_ACTIVATION)
_MIXER = (
    *("short_convolution", "step_sizes", "chunk_", "pass_states", "gated_scan", "gated_rms_norm"),
    *("unit_norm", "delta_", "decay_sums", "invert_triangles"),
)
"""Beginnings of the names of operators, see `phaze_opt.workload.capture.expert_kernels` and
`recurrence_kernels` there."""


@dataclass(frozen=True)
class LayerForward:
    """The forward of a layer; operators and tensors are named by their places in its graph."""

    layer: Layer

    @property
    def graph(self) -> OperatorGraph:
        """The forward."""
        return self.layer.forward

    def with_run_again(self, runs: Collection[int], dropped: Collection[int], more: int) -> Layer:
        """Return the layer with what selective recompute runs again.

        While it runs, what it gives again is alive: the working set is at most that without
        recompute and these tensors, and at most that of full recompute.

        Parameters
        ----------
        runs
            Operators.
        dropped
            Tensors that are kept without recompute, and given again by them.
        more
            Bytes that are kept now, and not without recompute.
        """
        layer = self.layer
        given = sum(map(self.bytes_of, dropped))

        def alive(sizes: BytesByRecompute) -> BytesByRecompute:
            return replace(sizes, selective=min(sizes.none + given, max(sizes.full, sizes.none)))

        stash = layer.stash_bytes
        return replace(
            layer,
            selective_recompute=self._part_of_graph(runs, dropped),
            stash_bytes=replace(stash, selective=stash.none - given + more),
            transient_bytes=alive(layer.transient_bytes),
            fused_transient_bytes=alive(layer.fused_transient_bytes),
        )

    def bytes_of(self, place: int) -> int:
        """Return the size of a tensor."""
        tensor = self.graph.tensors[place]
        return tensor.elements * tensor.element_bytes

    def is_kept(self, place: int) -> bool:
        """Say whether a tensor stays for the backward without recompute.

        What comes into a layer is the result of another one; its backward reads it, or the layer
        before keeps it.
        """
        tensor = self.graph.tensors[place]
        return tensor.outlives or not tensor.writers or tensor.kind != "activation"

    def is_result(self, place: int) -> bool:
        """Say whether a tensor is what the layer hands on."""
        tensor = self.graph.tensors[place]
        return not tensor.readers and self.bytes_of(place) == self.layer.output_bytes

    @cached_property
    def stash(self) -> Sequence[int]:
        """The tensors made here that are kept for the backward without recompute."""
        return [
            place
            for place, tensor in enumerate(self.graph.tensors)
            if tensor.outlives
            and tensor.writers
            and tensor.kind == "activation"
            and not self.is_result(place)
        ]

    def writers_of(self, place: int) -> set[int]:
        """Return the operators that write a tensor."""
        return {writer for writer, _ in self.graph.tensors[place].writers}

    def inputs_of(self, runs: Collection[int]) -> set[int]:
        """Return the tensors that operators read and none of them makes."""
        own = set(runs)
        return {
            place
            for place, tensor in enumerate(self.graph.tensors)
            if any(read.operator in own for read in tensor.readers)
            and not self.writers_of(place) & own
        }

    def results_of(self, operators: Collection[int]) -> set[int]:
        """Return the tensors that operators write."""
        own = set(operators)
        return {p for p in range(len(self.graph.tensors)) if self.writers_of(p) & own}

    def _part_of_graph(self, runs: Collection[int], dropped: Collection[int]) -> OperatorGraph:
        """Return the operators that run again, with what they read and give."""
        order = sorted(runs)
        places = {operator: place for place, operator in enumerate(order)}
        tensors = []
        for place, tensor in enumerate(self.graph.tensors):
            writers = [(places[i], count) for i, count in tensor.writers if i in places]
            readers = [
                replace(read, operator=places[read.operator])
                for read in tensor.readers
                if read.operator in places
            ]
            if writers or readers:
                own = replace(tensor, writers=tuple(writers), readers=tuple(readers))
                tensors.append(replace(own, outlives=place in dropped))
        return OperatorGraph(tuple([self.graph.operators[i] for i in order]), tuple(tensors))

    @cached_property
    def reads(self) -> Sequence[frozenset[int]]:
        """The operators whose results each operator reads."""
        reads: list[set[int]] = [set() for _ in self.graph.operators]
        for source, destination, _ in self.graph.edges:
            reads[destination].add(source)
        return list(map(frozenset, reads))

    @cached_property
    def readers(self) -> Sequence[frozenset[int]]:
        """The operators that read the results of each operator."""
        readers: list[set[int]] = [set() for _ in self.graph.operators]
        for source, destination, _ in self.graph.edges:
            readers[source].add(destination)
        return list(map(frozenset, readers))

    @cached_property
    def weighted(self) -> frozenset[int]:
        """The products with a weight."""
        reads = (t.readers for t in self.graph.tensors if t.kind == "weight")
        operands = {read.operator for readers in reads for read in readers}
        return frozenset(i for i in operands if self.graph.operators[i].gemms)

    def named(self, *beginnings: str) -> list[int]:
        """Return the operators whose names begin so."""
        operators = enumerate(self.graph.operators)
        return [i for i, operator in operators if operator.id.startswith(beginnings)]

    def kinds(self, index: int) -> set[str]:
        """Return the kinds of vector work of an operator."""
        return {work.kind for work in self.graph.operators[index].vector}

    @cached_property
    def expert_products(self) -> frozenset[int]:
        """The products of routed experts: of sorted rows, and of what their activation gives.

        Their names do not tell: a product that every device of a tensor-parallel group repeats, as
        of a router, is a grouped one too, of one group.
        """
        operands = self.named(SORTED_ROWS, EXPERT_ACTIVATION)
        return self.closure(operands, self.readers, self.weighted) & self.weighted

    @cached_property
    def attention(self) -> frozenset[int]:
        """Fused attention, or all from the product of the scores to that of the result."""
        operators = self.graph.operators
        fused = [i for i, operator in enumerate(operators) if operator.attention]
        if fused:
            return frozenset(fused)
        own = self.weighted | self.mixer
        products = [i for i, each in enumerate(operators) if each.gemms and i not in own]
        return self.between(products, products) | frozenset(products)

    def between(self, first: Iterable[int], last: Iterable[int]) -> frozenset[int]:
        """Return the operators that depend on some, and on which others do."""
        return self.closure(first, self.readers) & self.closure(last, self.reads)

    def closure(
        self,
        start: Iterable[int],
        step: Sequence[frozenset[int]],
        ends: frozenset[int] = frozenset(),
    ) -> frozenset[int]:
        """Return what is reached from operators, up to those that end the way."""
        found: set[int] = set()
        waiting = [after for index in start for after in step[index]]
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                waiting += [] if index in ends else step[index]
        return frozenset(found)

    def before(self, operators: frozenset[int]) -> frozenset[int]:
        """Return what is before operators, up to the products with weights."""
        return self.closure(operators, self.reads, self.weighted)

    @property
    def up_projections(self) -> frozenset[int]:
        """What makes queries, keys and values of short vectors, which others read too."""
        core = frozenset(self.named(*LATENT)) & self.attention or self.attention
        beside = frozenset(self.named(*_BESIDE_QUERIES)) - core
        inner = self.before(core) - self.before(beside) - beside
        own = inner | self.attention
        return frozenset(i for i in inner if self.readers[i] <= own)

    @cached_property
    def activations(self) -> list[int]:
        """Activations of linear layers, those of routed experts aside."""
        others = {*self.named(EXPERT_ACTIVATION), *self.mixer}
        return [
            i
            for i in range(len(self.graph.operators))
            if i not in others and not self.kinds(i).isdisjoint(_ACTIVATIONS)
        ]

    @cached_property
    def around_activations(self) -> tuple[frozenset[int], frozenset[int]]:
        """The products before and after the activations of linear layers."""
        first, last = frozenset[int](), frozenset[int]()
        for activation in self.activations:
            after = self.closure([activation], self.readers, self.weighted)
            between = (after - self.weighted) | {activation}
            first |= self.before(between) & self.weighted
            last |= after & self.weighted
        return first, last

    @cached_property
    def mixer(self) -> frozenset[int]:
        """The kernels of a state-space mixer, or of a delta net."""
        return frozenset(self.named(*_MIXER))

    def feed_forward(self, activation: int) -> frozenset[int]:
        """Return the linear layers around an activation, with their communication."""
        after = self.closure([activation], self.readers, self.weighted)
        inner = (after - self.weighted) | {activation}
        before = self.before(inner)
        sent = {
            i
            for i, operator in enumerate(self.graph.operators)
            if operator.collective
            and (self.reads[i] & after or self.readers[i] & before & self.weighted)
        }
        return inner | after | before | sent

    @cached_property
    def routed(self) -> frozenset[int]:
        """The router and the routed experts."""
        own = self.expert_products.union(self.named(*_ROUTED))
        if not own:
            return frozenset()
        routers = self.closure(self.named("route"), self.reads, self.weighted)
        return self.between(routers | own, own) | routers | own

    def is_of_stream(self, index: int) -> bool:
        """Say whether an operator is a norm of the residual stream, not of heads."""
        if self.kinds(index).isdisjoint(_NORMS) or index in self.mixer:
            return False
        elements = {count for t in self.graph.tensors for i, count in t.writers if i == index}
        of_heads = (self.kinds(reader) == {"rotary"} for reader in self.readers[index])
        attends = not self.readers[index].isdisjoint(self.attention)
        return 2 * max(elements) == self.layer.output_bytes and not (attends or any(of_heads))

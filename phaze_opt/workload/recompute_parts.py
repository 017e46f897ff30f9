"""Selective recompute of chosen parts of a layer: which operators run again, and what is kept.

The parts are those of Megatron-Core (``--recompute-modules``), found in the captured forward of
layers that attend:

* ``core_attn``: attention from queries, keys and values to its result.
* ``mlp``: both linear layers and what lies between, where a layer has no routed experts;
  ``shared_experts``: the same beside routed experts; ``moe``: router, routed and shared experts.
* ``layernorm``: norms of the residual stream; ``moe_act``: the activation of routed experts;
  ``mla_up_proj``: queries, keys and values out of their short vectors.

A part that runs again needs its inputs and gives again what the backward reads of its inside. The
last three also drop their results ("output discarding"), the others keep those that are read
elsewhere. So with ``S`` the tensors that a layer keeps for its backward,

    kept = S − (tensors of the parts) + (inputs of the parts that are not in S)

and all operators of the parts run again before the backward, with their communication. While it
runs, what they give again is alive: the working set is at most that without recompute and these
tensors, and at most that of full recompute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from phaze_opt.errors import InputError
from phaze_opt.on_demand import cached_property
from phaze_opt.training import RECOMPUTE_PARTS, Training
from phaze_opt.workload.graph import BytesByRecompute, Layer, OperatorGraph, WorkloadVariant

_DISCARDING = ("layernorm", "moe_act", "mla_up_proj")
"""Parts whose results are dropped too."""
_NORMS = ("rms_norm", "layer_norm")
_ACTIVATIONS = ("gelu", "relu", "silu")
_GROUPED, _EXPERT_ACTIVATION, _LATENT = "grouped_", "expert_activation", "latent_keys_and_values"
_ROUTED = ("route", "permute_rows", "combine_rows", _GROUPED, _EXPERT_ACTIVATION)
"""Beginnings of the names of operators, see `phaze_opt.workload.capture.expert_kernels`."""


def with_parts_run_again(
    variants: Sequence[WorkloadVariant], training: Training
) -> list[WorkloadVariant]:
    """Return a model whose selective recompute runs the parts of a training again.

    Parameters
    ----------
    variants
        As captured.
    training
        Names the parts; with none the variants are as they were.

    Raises
    ------
    InputError
        If no layer has one of the parts.
    """
    parts = training.parts_again
    return [_with_parts(variant, parts) for variant in variants] if parts else list(variants)


@lru_cache(maxsize=64)
def parts_by_layer(variant: WorkloadVariant) -> Mapping[str, tuple[str, ...]]:
    """Return the parts of every layer that has any, by its name and in their order, cached."""
    found = {layer.name: _Parts(layer).operators for layer in variant.layers}
    return {name: tuple(parts) for name, parts in found.items() if parts}


def memory_with_parts(variant: WorkloadVariant, layer: str, parts: Iterable[str]) -> list[int]:
    """Return what a layer keeps and holds where parts run again: stash and both working sets."""
    (own,) = (each for each in variant.layers if each.name == layer)
    changed = _Parts(own).again(parts)
    sizes = changed.stash_bytes, changed.transient_bytes, changed.fused_transient_bytes
    return [each.selective for each in sizes]


@lru_cache(maxsize=256)
def _with_parts(variant: WorkloadVariant, names: tuple[str, ...]) -> WorkloadVariant:
    """Do as `with_parts_run_again` for one variant."""
    there = parts_by_layer(variant)
    known = {part for parts in there.values() for part in parts}
    known |= {f"{layer}.{part}" for layer, parts in there.items() for part in parts}
    missing = [name for name in names if name not in known]
    if missing:
        plain = [name for name in RECOMPUTE_PARTS if name in known]
        has = f"they have {', '.join(plain)}" if plain else "they have none of them"
        raise InputError(
            f"recompute_parts names {missing[0]}, which no layer of the model has; {has}."
        )
    return replace(variant, layers=tuple([_Parts(layer).again(names) for layer in variant.layers]))


@dataclass(frozen=True)
class _Parts:
    """The forward of a layer, and its parts."""

    layer: Layer

    @property
    def graph(self) -> OperatorGraph:
        """The forward."""
        return self.layer.forward

    def again(self, names: Iterable[str]) -> Layer:
        """Return the layer with parts that selective recompute runs again, before a backward."""
        layer = self.layer
        if not layer.has_backward:
            return layer
        own = {name.removeprefix(f"{layer.name}.") for name in names}
        chosen = {name: operators for name, operators in self.operators.items() if name in own}
        runs = set().union(*chosen.values())
        dropped = self._dropped(chosen)
        given = sum(self._bytes(place) for place in dropped)
        needed = sum(self._bytes(place) for place in self._inputs(runs) if not self._is_kept(place))

        def alive(sizes: BytesByRecompute) -> BytesByRecompute:
            return replace(sizes, selective=min(sizes.none + given, max(sizes.full, sizes.none)))

        stash = layer.stash_bytes
        return replace(
            layer,
            selective_recompute=self._run_again(runs, dropped),
            stash_bytes=replace(stash, selective=stash.none - given + needed),
            transient_bytes=alive(layer.transient_bytes),
            fused_transient_bytes=alive(layer.fused_transient_bytes),
        )

    def _bytes(self, place: int) -> int:
        """Return the size of a tensor."""
        tensor = self.graph.tensors[place]
        return tensor.elements * tensor.element_bytes

    def _is_kept(self, place: int) -> bool:
        """Say whether a tensor stays for the backward without recompute.

        What comes into a layer is the result of another one; its backward reads it, or the layer
        before keeps it.
        """
        tensor = self.graph.tensors[place]
        return tensor.outlives or not tensor.writers or tensor.kind != "activation"

    def _is_result(self, place: int) -> bool:
        """Say whether a tensor is what the layer hands on."""
        tensor = self.graph.tensors[place]
        return not tensor.readers and self._bytes(place) == self.layer.output_bytes

    def _dropped(self, chosen: Mapping[str, frozenset[int]]) -> set[int]:
        """Return the tensors that are kept without recompute, and given again by parts."""
        dropped: set[int] = set()
        for place, tensor in enumerate(self.graph.tensors):
            if not tensor.outlives or tensor.kind != "activation" or self._is_result(place):
                continue
            writers = {writer for writer, _ in tensor.writers}
            for name, runs in chosen.items():
                inside = {read.operator for read in tensor.readers} <= runs
                if writers and writers <= runs and (inside or name in _DISCARDING):
                    dropped.add(place)
        return dropped

    def _inputs(self, runs: set[int]) -> set[int]:
        """Return the tensors that operators read and none of them makes."""
        return {
            place
            for place, tensor in enumerate(self.graph.tensors)
            if any(read.operator in runs for read in tensor.readers)
            and not {writer for writer, _ in tensor.writers} & runs
        }

    def _run_again(self, runs: set[int], dropped: set[int]) -> OperatorGraph:
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
    def operators(self) -> Mapping[str, frozenset[int]]:
        """The operators of every part that the layer has, by its name."""
        attention = self._attention
        if not attention:
            return {}
        linear = frozenset().union(*map(self._feed_forward, self._activations))
        routed = self._routed
        found = {
            "core_attn": attention,
            "layernorm": frozenset(filter(self._is_of_stream, range(len(self._reads)))),
            "mlp": frozenset() if routed else linear,
            "moe": routed | linear if routed else frozenset(),
            "moe_act": frozenset(self._named(_EXPERT_ACTIVATION)),
            "mla_up_proj": self._up_projections if self._named(_LATENT) else frozenset(),
            "shared_experts": linear if routed else frozenset(),
        }
        return {name: operators for name, operators in found.items() if operators}

    @cached_property
    def _reads(self) -> Sequence[frozenset[int]]:
        """The operators whose results each operator reads."""
        reads: list[set[int]] = [set() for _ in self.graph.operators]
        for source, destination, _ in self.graph.edges:
            reads[destination].add(source)
        return list(map(frozenset, reads))

    @cached_property
    def _readers(self) -> Sequence[frozenset[int]]:
        """The operators that read the results of each operator."""
        readers: list[set[int]] = [set() for _ in self.graph.operators]
        for source, destination, _ in self.graph.edges:
            readers[source].add(destination)
        return list(map(frozenset, readers))

    @cached_property
    def _weighted(self) -> frozenset[int]:
        """The products with a weight."""
        reads = (t.readers for t in self.graph.tensors if t.kind == "weight")
        operands = {read.operator for readers in reads for read in readers}
        return frozenset(i for i in operands if self.graph.operators[i].gemms)

    def _named(self, *beginnings: str) -> list[int]:
        """Return the operators whose names begin so."""
        operators = enumerate(self.graph.operators)
        return [i for i, operator in operators if operator.id.startswith(beginnings)]

    def _kinds(self, index: int) -> set[str]:
        """Return the kinds of vector work of an operator."""
        return {work.kind for work in self.graph.operators[index].vector}

    @cached_property
    def _attention(self) -> frozenset[int]:
        """Fused attention, or all from the product of the scores to that of the result."""
        operators = self.graph.operators
        fused = [i for i, operator in enumerate(operators) if operator.attention]
        if fused:
            return frozenset(fused)
        products = [i for i, each in enumerate(operators) if each.gemms and i not in self._weighted]
        return self._between(products, products) | frozenset(products)

    def _between(self, first: Iterable[int], last: Iterable[int]) -> frozenset[int]:
        """Return the operators that depend on some, and on which others do."""
        return self._closure(first, self._readers) & self._closure(last, self._reads)

    def _closure(
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

    def _before(self, operators: frozenset[int]) -> frozenset[int]:
        """Return what is before operators, up to the products with weights."""
        return self._closure(operators, self._reads, self._weighted)

    @property
    def _up_projections(self) -> frozenset[int]:
        """What makes queries, keys and values of short vectors, which others read too."""
        inner = self._before(self._attention)
        own = inner | self._attention
        return frozenset(i for i in inner if self._readers[i] <= own)

    @cached_property
    def _activations(self) -> list[int]:
        """Activations of linear layers, those of routed experts aside."""
        experts = set(self._named(_EXPERT_ACTIVATION))
        return [
            i
            for i in range(len(self.graph.operators))
            if i not in experts and not self._kinds(i).isdisjoint(_ACTIVATIONS)
        ]

    def _feed_forward(self, activation: int) -> frozenset[int]:
        """Return the linear layers around an activation, with their communication."""
        after = self._closure([activation], self._readers, self._weighted)
        inner = (after - self._weighted) | {activation}
        before = self._before(inner)
        sent = {
            i
            for i, operator in enumerate(self.graph.operators)
            if operator.collective
            and (self._reads[i] & after or self._readers[i] & before & self._weighted)
        }
        return inner | after | before | sent

    @cached_property
    def _routed(self) -> frozenset[int]:
        """The router and the routed experts."""
        own = self._named(*_ROUTED)
        if not own:
            return frozenset()
        routers = self._closure(self._named("route"), self._reads, self._weighted)
        return self._between([*routers, *own], own) | routers | frozenset(own)

    def _is_of_stream(self, index: int) -> bool:
        """Say whether an operator is a norm of the residual stream, not of heads."""
        if self._kinds(index).isdisjoint(_NORMS):
            return False
        elements = {count for t in self.graph.tensors for i, count in t.writers if i == index}
        of_heads = (self._kinds(reader) == {"rotary"} for reader in self._readers[index])
        attends = not self._readers[index].isdisjoint(self._attention)
        return 2 * max(elements) == self.layer.output_bytes and not (attends or any(of_heads))

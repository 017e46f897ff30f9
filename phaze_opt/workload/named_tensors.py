"""Activations of a layer by name, what a policy runs again for the others, and what is offloaded.

The names are those of `phaze_opt.activation_names`, and stand for tensors of the captured forward:

* ``layer_input``: what comes into the layer; ``qkv_input``: what the products before attention
  read; ``query_key_value``: what attention reads; ``context``: its result and its row statistics,
  ``attention_result``: its result alone.
* ``out_proj``: the product after attention, ``mlpwi`` and ``mlpwo``: those before and after the
  activation of linear layers and of routed experts; where a tensor-parallel group sums a product
  up, the sum.
* ``residual``: what the norm after attention reads; ``expert_rows`` and ``expert_hidden``: what the
  first products and the activation of routed experts read.
* ``sums``: results of all sums over the tensor-parallel group; ``second_products``: of the first,
  third and so on of the products with a weight.

Under a policy a layer keeps its input and the named tensors. All that its backward reads besides is
made again from these: backward from it, an operator whose result is not kept runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phaze_opt.activation_names import ActivationPolicy
from phaze_opt.on_demand import cached_property
from phaze_opt.precision import PRECISIONS, AttentionPrecision, PrecisionName
from phaze_opt.workload.casts import linear_products
from phaze_opt.workload.layer_forward import EXPERT_ACTIVATION, LayerForward
from phaze_opt.workload.narrow_gathers import narrow_gathers

_SUMS = ("all_reduce", "reduce_scatter")


class RunAgain(NamedTuple):
    """What selective recompute does in a layer.

    Attributes
    ----------
    runs
        Operators that run again.
    dropped
        Tensors that are kept without recompute, and not with it.
    more
        Tensors that are kept with it only.
    """

    runs: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()
    more: frozenset[int] = frozenset()


NOTHING_AGAIN = RunAgain()
"""No recompute."""


@dataclass(frozen=True)
class NamedTensors:
    """The tensors of a layer by name."""

    forward: LayerForward

    def named(self, names: Iterable[str]) -> frozenset[int]:
        """Return the tensors that some names stand for; none for what the layer does not have."""
        return frozenset().union(*(self.tensors.get(name, frozenset()) for name in names))

    def under(self, policy: ActivationPolicy) -> RunAgain:
        """Return what runs again, and what is kept, under a policy; nothing without attention."""
        forward = self.forward
        if not forward.attention:
            return NOTHING_AGAIN
        allowed = self.named((*policy.kept, *policy.offloaded))
        kept = set(allowed) if policy.keeps_unread else set()
        runs: set[int] = set()
        waiting = [place for place in forward.stash if place not in kept]
        while waiting:
            place = waiting.pop()
            if place in allowed or not forward.writers_of(place):
                kept.add(place)
                continue
            new = forward.writers_of(place) - runs
            runs |= new
            waiting += [p for p in forward.inputs_of(new) if p not in kept]
        stash = set(forward.stash)
        return RunAgain(
            frozenset(runs),
            frozenset(stash - kept),
            frozenset(place for place in kept - stash if not forward.is_kept(place)),
        )

    def offloaded_bytes(
        self,
        names: Iterable[str],
        again: RunAgain | None,
        precision: PrecisionName,
        attention_precision: AttentionPrecision,
    ) -> int:
        """Return how many bytes of named tensors a layer keeps, to send them to the host.

        Parameters
        ----------
        names
            Of tensors.
        again
            What runs again; ``None`` where all does, so that only the layer's input is kept.
        precision
            Of linear layers, which keep narrow copies of what only they read.
        attention_precision
            Of fused attention, which keeps narrow queries, keys and values.
        """
        held = set(self.tensors["layer_input"])
        if again is not None:
            held |= (set(self.forward.stash) | again.more) - again.dropped
        sizes = precision, attention_precision
        return sum(self._kept_bytes(place, *sizes) for place in self.named(names) & held)

    def _kept_bytes(
        self, place: int, precision: PrecisionName, attention_precision: AttentionPrecision
    ) -> int:
        """Return the size of a kept tensor, and of its narrow copy."""
        tensor, own = self.forward.graph.tensors[place], self.forward.bytes_of(place)
        elements = tensor.elements
        if attention_precision != "bf16" and place in self.tensors["query_key_value"]:
            return PRECISIONS[attention_precision].stored(elements)[0]
        readers = {read.operator for read in tensor.readers}
        gathers = narrow_gathers(self.forward.graph, precision, self._linear)
        narrow_readers = self._linear | {each.operator for each in gathers}
        is_wide = precision == "bf16" or readers.isdisjoint(narrow_readers)
        if is_wide or place in self.tensors["layer_input"]:
            return own
        narrow = PRECISIONS[precision].stored(elements)[0]
        return narrow if readers <= narrow_readers else own + narrow

    @cached_property
    def _linear(self) -> set[int]:
        """The products of linear layers."""
        return set(linear_products(self.forward.graph))

    @cached_property
    def tensors(self) -> Mapping[str, frozenset[int]]:
        """Tensors by all names."""
        forward, graph = self.forward, self.forward.graph
        attention, weighted = forward.attention, forward.weighted
        before = forward.before(attention)
        after = forward.closure(attention, forward.readers, weighted) if attention else frozenset()
        out = after & weighted
        inner, outer = forward.around_activations
        experts = frozenset(forward.named(EXPERT_ACTIVATION))
        first_of_experts = forward.expert_products & self._read_by(experts)
        context = frozenset(
            place
            for place in forward.results_of(attention)
            if len(attention) == 1 or self._readers_of(place) - attention
        )
        norms = filter(forward.is_of_stream, range(len(graph.operators)))
        later = forward.closure(attention, forward.readers)
        sums = list(filter(self._is_sum, range(len(graph.operators))))
        products = sorted(weighted - forward.expert_products)
        return {
            "layer_input": frozenset(
                place
                for place, tensor in enumerate(graph.tensors)
                if tensor.kind == "activation"
                and not tensor.writers
                and forward.bytes_of(place) == forward.layer.output_bytes
            ),
            "qkv_input": self._activations_read(before & weighted),
            "query_key_value": self._activations_read(attention),
            "context": context,
            "attention_result": context & self._activations_read(out),
            "out_proj": self._summed(out),
            "mlpwi": self._results(inner | first_of_experts),
            "mlpwo": self._summed(outer | (forward.expert_products - first_of_experts)),
            "residual": self._activations_read(frozenset(norms) & later),
            "expert_rows": self._activations_read(first_of_experts),
            "expert_hidden": self._activations_read(experts) & self._results(first_of_experts),
            "sums": self._results(sums),
            "second_products": self._results(products[::2]),
        }

    def _read_by(self, operators: Iterable[int]) -> frozenset[int]:
        """Return the operators whose results some read."""
        return frozenset().union(*(self.forward.reads[index] for index in operators))

    def _readers_of(self, place: int) -> set[int]:
        """Return the operators that read a tensor."""
        return {read.operator for read in self.forward.graph.tensors[place].readers}

    def _activations_read(self, operators: Collection[int]) -> frozenset[int]:
        """Return the activations made here that operators read, and of what they gather."""
        forward, graph = self.forward, self.forward.graph
        gathers = {
            i
            for i in self._read_by(operators)
            if (sent := graph.operators[i].collective) and sent.kind == "all_gather"
        }
        return frozenset(
            place
            for place in forward.inputs_of(operators) | forward.inputs_of(gathers)
            if graph.tensors[place].kind == "activation" and graph.tensors[place].writers
        )

    def _is_sum(self, index: int) -> bool:
        """Say whether an operator sums over the tensor-parallel group."""
        collective = self.forward.graph.operators[index].collective
        return collective is not None and collective.kind in _SUMS

    def _summed(self, operators: Iterable[int]) -> frozenset[int]:
        """Return the results of products, where a group sums them up those of the sum."""
        forward, ends = self.forward, set()
        for index in operators:
            ends |= set(filter(self._is_sum, forward.readers[index])) or {index}
        return self._results(ends)

    def _results(self, operators: Collection[int]) -> frozenset[int]:
        """Return the tensors that operators write."""
        return frozenset(self.forward.results_of(operators))

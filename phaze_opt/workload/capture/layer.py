"""Capture layers: from a traced model to operator graphs, stash and memory.

A traced model is cut into parts, each of which holds the working nodes of one layer in both
directions. A tensor that one part makes and another reads is a boundary tensor; the tensors of any
forward that a part's backward reads are its stash.

The stash is exact. The published formulas of a GPT block (Korthikanti et al. 2022, equations 1 to
6) give 0.005 % less at the published sizes, because they neglect the mean and reciprocal deviation
of the two layer norms in fp32, 16 bytes per token. Scaling, masking and softmax are one kernel that
keeps only the probabilities, so a causal mask is not in the stash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from msgspec import UNSET
from torch import fx, nn

from phaze_opt.workload.capture.aot import Trace, trace
from phaze_opt.workload.capture.aten import work_of
from phaze_opt.workload.capture.aten_node import NodeWork, name_of, results_of
from phaze_opt.workload.capture.selective_recompute import RecomputePlan, selective_recompute
from phaze_opt.workload.capture.tensors import LiveGraph, ResultMemory
from phaze_opt.workload.capture.working_set import Step, fuse_steps, peak_bytes, step_of
from phaze_opt.workload.graph import (
    BytesByRecompute,
    Layer,
    Operator,
    OperatorGraph,
    Tensor,
    TensorKind,
    TensorRead,
)

_LOOKUPS = ("embedding", "gather")


@dataclass(frozen=True)
class LayerNodes:
    """The working nodes of one layer, in order of execution.

    ``segment`` is the number of the segment that it was cut from (`layer_cuts`).
    """

    forward: Sequence[fx.Node]
    backward: Sequence[fx.Node]
    segment: int = 0


def capture_layer(
    name: str,
    module: nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    tied_parameters: int = 0,
    routed_parameters: int = 0,
    expert_groups: tuple[int, int] | None = None,
) -> Layer:
    """Capture the training of one layer.

    Parameters
    ----------
    name
        Name of the layer.
    module
        Module on the meta device.
    inputs
        Tensors on the meta device; those that require a gradient get one in the backward.
    tied_parameters
        Number of the module's parameters that another layer holds too.
    routed_parameters
        Number of them that belong to routed experts.
    expert_groups
        See `Layer`.
    """
    parameters = sum(parameter.numel() for parameter in module.parameters())
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    has_backward = any(tensor.requires_grad for tensor in (*module.parameters(), *inputs))
    model = TracedModel(trace(module, inputs) if has_backward else _trace_forward(module, inputs))
    layer = model.layer(name, model.whole, parameters, tied_parameters, has_backward)
    return replace(
        layer,
        routed_parameters=routed_parameters or UNSET,
        expert_groups=expert_groups or UNSET,
        frozen_parameters=frozen or UNSET,
    )


def _trace_forward(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Trace:
    """Trace a layer of which neither the parameters nor the inputs need gradients."""
    parameters = list(module.parameters())
    for parameter in parameters:
        parameter.requires_grad_()
    try:
        return trace(module, inputs).without_backward()
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)


class TracedModel:
    """A traced model whose parts can be turned into layers.

    Attributes
    ----------
    forward, backward
        The live graphs of the two directions.
    whole
        All working nodes as one part.
    """

    def __init__(self, traced: Trace) -> None:
        self.traced = traced
        self.forward = LiveGraph(traced.forward)
        kept = {node.name: self.forward.base(node) for node in self.forward.outputs if node}
        self.backward = LiveGraph(traced.backward, inherited=kept)
        self.whole = LayerNodes(self.forward.nodes, self.backward.nodes)
        self._kept = set(kept.values())
        self._weight_gradients = _bases(self.backward, self.backward.outputs[: len(traced.held)])

    def layer(
        self,
        name: str,
        part: LayerNodes,
        parameters: int,
        tied_parameters: int,
        has_backward: bool = True,
    ) -> Layer:
        """Return the layer of a part that holds a number of ``parameters``.

        Without a backward it keeps nothing, and nothing runs again.
        """
        outputs = self.outputs(part)
        wanted = _bases(self.backward, self.backward.outputs[len(self.traced.held) :])
        gradients = _handed_over(self.backward, part.backward, wanted)
        stash = self._stash(part)
        chosen = selective_recompute(self.forward, part.forward, stash)
        plans = (
            RecomputePlan(stash, []),
            RecomputePlan(self._activations(chosen.kept), chosen.nodes),
            RecomputePlan(self.inputs(part), part.forward),
        )
        if not has_backward:
            plans = (RecomputePlan(set(), []),) * 3
        working_set = partial(self._working_set, part, (outputs, gradients), stash)
        leaving = outputs | self._kept, gradients | _bases(self.backward, self.backward.outputs)
        return Layer(
            name=name,
            forward=self._graph(self.forward, part.forward, leaving[0]),
            backward=self._graph(self.backward, part.backward, leaving[1]),
            selective_recompute=self._graph(self.forward, plans[1].nodes, leaving[0]),
            parameters=parameters,
            tied_parameters=tied_parameters,
            stash_bytes=BytesByRecompute(*(_total(plan.kept) for plan in plans)),
            transient_bytes=BytesByRecompute(*(working_set(plan, False) for plan in plans)),
            fused_transient_bytes=BytesByRecompute(*(working_set(plan, True) for plan in plans)),
            output_bytes=_total(outputs),
            stops_gradients=UNSET if has_backward else True,
        )

    def inputs(self, part: LayerNodes) -> set[ResultMemory]:
        """Return the memory that a part's forward reads and others made, without parameters."""
        return self._activations(_read(self.forward, part.forward)) - _written(
            self.forward, part.forward
        )

    def outputs(self, part: LayerNodes) -> set[ResultMemory]:
        """Return the memory that a part's forward makes for others or as the model's result."""
        results = _bases(self.forward, self.forward.outputs[: self.traced.results])
        return _handed_over(self.forward, part.forward, results)

    def _stash(self, part: LayerNodes) -> set[ResultMemory]:
        """Return the memory that the forward keeps for a part's backward.

        A tensor that the backwards of two parts read counts for both, because the parts may be on
        two devices.
        """
        return self._activations(_read(self.backward, part.backward) & self._kept)

    def _working_set(
        self,
        part: LayerNodes,
        leaving: tuple[set[ResultMemory], set[ResultMemory]],
        stash: set[ResultMemory],
        plan: RecomputePlan,
        fused: bool,
    ) -> int:
        """Return the larger peak of a part's two directions in bytes, without kept tensors.

        A parameter's gradient is added to its accumulator at once, so it does not stay alive.
        """
        forward = [step_of(self.forward, node) for node in part.forward]
        again = [step_of(self.forward, node) for node in plan.nodes]
        backward = again + [step_of(self.backward, node) for node in part.backward]
        elsewhere = plan.kept | (self._kept - stash)
        return max(
            self._peak(forward, leaving[0], plan.kept, fused),
            self._peak(backward, leaving[1], elsewhere, fused),
        )

    def _peak(
        self,
        steps: Sequence[Step],
        leaving: set[ResultMemory],
        elsewhere: set[ResultMemory],
        fused: bool,
    ) -> int:
        """Return the peak of some steps without parameters and memory counted elsewhere."""
        read = {base for step in steps for base in step.reads}
        arriving = read - {base for step in steps for base in step.writes}
        uncounted = elsewhere | (read - self._activations(read))
        if fused:
            steps = fuse_steps(steps, leaving | elsewhere)
        return peak_bytes(steps, arriving=arriving, leaving=leaving, uncounted=uncounted)

    def _activations(self, bases: set[ResultMemory]) -> set[ResultMemory]:
        """Leave out parameters and buffers."""
        return {base for base in bases if base.node not in self.traced.held}

    def _graph(
        self, live: LiveGraph, nodes: Sequence[fx.Node], leaving: set[ResultMemory]
    ) -> OperatorGraph:
        """Return working nodes as operators, and the tensors that they read or write."""
        names: Counter[str] = Counter()
        operators: list[Operator] = []
        writers: dict[ResultMemory, list[tuple[int, int]]] = {}
        readers: dict[ResultMemory, list[TensorRead]] = {}
        for node in nodes:
            name = name_of(node).rpartition("::")[2].strip("_")
            identifier = f"{name}_{names[name]}" if names[name] else name
            names[name] += 1
            for work in work_of(node):
                index = len(operators)
                factors = [live.base(factor) for factor in work.factors]
                for base, size in _read_elements(live, node, work).items():
                    read = TensorRead(index, size, base in factors[:1], base in factors[1:])
                    readers.setdefault(base, []).append(read)
                for base, size in _written_elements(live, node, work).items():
                    writers.setdefault(base, []).append((index, size))
                operators.append(
                    Operator(
                        id=identifier + work.suffix,
                        gemms=work.gemms,
                        vector=work.vector,
                        collective=work.collective,
                        attention=work.attention,
                        surplus_flops=work.surplus_flops or UNSET,
                    )
                )
        tensors = []
        for base in dict.fromkeys((*readers, *writers)):
            written, reads = tuple(writers.get(base, ())), tuple(readers.get(base, ()))
            # Of what comes from outside, a single reader sees no more than it reads.
            whole = base.elements if written or len(reads) > 1 else reads[0].elements
            leaves = bool(written) and base in leaving
            kind = self._kind(base, live)
            tensors.append(Tensor(whole, base.dtype, kind, written, reads, leaves))
        return OperatorGraph(tuple(operators), tuple(tensors))

    def _kind(self, base: ResultMemory, live: LiveGraph) -> TensorKind:
        """Return what some memory holds that a direction uses."""
        if base.node in self.traced.held:
            return "weight"
        if live is self.forward or base in self._kept:
            return "activation"
        return "weight_gradient" if base in self._weight_gradients else "gradient"


def _read(live: LiveGraph, nodes: Sequence[fx.Node]) -> set[ResultMemory]:
    """Return the memory that some nodes read."""
    return {base for node in nodes for base in live.operands(node)}


def _bases(live: LiveGraph, nodes: Sequence[fx.Node | None]) -> set[ResultMemory]:
    """Return the distinct memory of some nodes."""
    return {live.base(node) for node in nodes if node is not None}


def _written(live: LiveGraph, nodes: Sequence[fx.Node]) -> set[ResultMemory]:
    """Return the memory that some nodes write."""
    return {base for node in nodes for base in live.written(node)}


def _handed_over(
    live: LiveGraph, nodes: Sequence[fx.Node], results: set[ResultMemory]
) -> set[ResultMemory]:
    """Return the memory that some nodes write and other nodes read, or that is a result."""
    here = set(nodes)
    return {
        base
        for base in _written(live, nodes)
        if base in results or not here.issuperset(live.readers(base))
    }


def _total(bases: set[ResultMemory]) -> int:
    """Return the size of distinct memory."""
    return sum(base.size_bytes for base in bases)


def _written_elements(live: LiveGraph, node: fx.Node, work: NodeWork) -> dict[ResultMemory, int]:
    """Return the elements that one piece of work writes of each result."""
    written = live.written(node)
    if work.results is not None:
        written = tuple(base for base in written if base.index in work.results)
    if work.part_elements is not None:
        return dict.fromkeys(written, work.part_elements)
    return {base: base.elements for base in written}


def _read_elements(live: LiveGraph, node: fx.Node, work: NodeWork) -> dict[ResultMemory, int]:
    """Return the elements that one piece of work reads of each operand.

    A look-up reads only the rows that it returns.
    """
    kinds = {vector.kind for vector in work.vector}
    if kinds == {"fill"}:
        return {}
    operands = node.all_input_nodes if work.operands is None else work.operands
    read = live.read(operands)
    if not kinds.isdisjoint(_LOOKUPS):
        table = live.base(node.all_input_nodes[0])
        looked_up = sum(t.numel() for t in results_of(node) if isinstance(t, torch.Tensor))
        read[table] = min(read[table], looked_up)
    return read

"""Capture one layer: from a module on the meta device to operator graphs, stash and memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, fx, nn

from phaze_opt.workload.aten import Work, name_of, results_of, size_bytes, work_of
from phaze_opt.workload.graph import Layer, Operator, OperatorGraph, Stash
from phaze_opt.workload.tensors import Base, LiveGraph, ancestors, peak_bytes
from phaze_opt.workload.trace import Trace, trace

_LOOKUPS = ("embedding", "gather")


def capture_layer(
    name: str, module: nn.Module, inputs: Sequence[Tensor], *, tied_parameters: int = 0
) -> Layer:
    """Capture the training of one layer.

    Parameters
    ----------
    name
        Of the layer.
    module
        On the meta device.
    inputs
        On the meta device; those that require a gradient get one in the backward.
    tied_parameters
        Elements of the module's parameters that another layer holds too.
    """
    traced = trace(module, inputs)
    forward = LiveGraph(traced.forward)
    saved = {node.name: forward.base(node) for node in forward.outputs if node is not None}
    backward = LiveGraph(traced.backward, inherited=saved)
    stash = _stash(traced, forward)
    core = _attention_core(forward)
    outputs = _bases(forward, forward.outputs[: traced.results])
    return Layer(
        name=name,
        forward=_graph(forward, forward.nodes),
        backward=_graph(backward, backward.nodes),
        selective_recompute=_graph(forward, core),
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        tied_parameters=tied_parameters,
        stash_bytes=_stash_sizes(traced, forward, stash, core, inputs),
        transient_bytes=max(
            _forward_peak(traced, forward, stash, outputs), _backward_peak(traced, backward, stash)
        ),
        output_bytes=sum(base.size_bytes for base in outputs),
    )


def _bases(live: LiveGraph, nodes: Iterable[fx.Node | None]) -> set[Base]:
    """Return the distinct memory of some nodes."""
    return {live.base(node) for node in nodes if node is not None}


def _graph(live: LiveGraph, nodes: Sequence[fx.Node]) -> OperatorGraph:
    """Turn working nodes into operators with their traffic, and the tensors between them."""
    leaving = _bases(live, live.outputs)
    operators: list[Operator] = []
    writers: dict[Base, list[tuple[int, int]]] = {}
    edges: list[tuple[int, int, int]] = []
    for node in nodes:
        for work in work_of(node):
            index = len(operators)
            read = _read_bytes(live, node, work)
            sizes: dict[int, int] = {}
            for base, size in read.items():
                for source, share in writers.get(base, ()):
                    sizes[source] = sizes.get(source, 0) + size * share // base.size_bytes
            edges.extend((source, index, size) for source, size in sorted(sizes.items()))
            written = _written_bytes(live, node, work)
            for base, size in written.items():
                writers.setdefault(base, []).append((index, size))
            operators.append(
                Operator(
                    id=node.name + work.suffix,
                    gemms=work.gemms,
                    vector=work.vector,
                    collective=work.collective,
                    read_bytes=sum(read.values()),
                    write_bytes=sum(written.values()),
                    outliving_bytes=sum(n for base, n in written.items() if base in leaving),
                )
            )
    return OperatorGraph(tuple(operators), tuple(edges))


def _written_bytes(live: LiveGraph, node: fx.Node, work: Work) -> dict[Base, int]:
    """Return what one piece of work writes; the pieces of a concatenation write a part each."""
    written = live.written(node)
    if work.results is not None:
        written = tuple(base for base in written if base.index in work.results)
    if work.part_bytes is not None:
        return dict.fromkeys(written, work.part_bytes)
    return {base: base.size_bytes for base in written}


def _read_bytes(live: LiveGraph, node: fx.Node, work: Work) -> dict[Base, int]:
    """Return what one piece of work reads; a look-up reads only the rows that it returns."""
    kinds = {vector.kind for vector in work.vector}
    if kinds == {"fill"}:
        return {}
    operands = node.all_input_nodes if work.operands is None else work.operands
    read = live.read(operands)
    if not kinds.isdisjoint(_LOOKUPS):
        table = live.base(node.all_input_nodes[0])
        looked_up = sum(size_bytes(t) for t in results_of(node) if isinstance(t, Tensor))
        read[table] = min(read[table], looked_up)
    return read


def _stash(traced: Trace, forward: LiveGraph) -> set[Base]:
    """Return what the forward keeps for the backward, without parameters and buffers."""
    kept = _bases(forward, forward.outputs[traced.results :])
    return {base for base in kept if base.node not in traced.constants}


def _stash_sizes(
    traced: Trace,
    forward: LiveGraph,
    stash: set[Base],
    core: Sequence[fx.Node],
    inputs: Sequence[Tensor],
) -> Stash:
    """Return the bytes kept under each recompute.

    Selective drops what the attention core makes and keeps for itself, and keeps the core's inputs
    (Korthikanti et al. 2022, section 5). Full keeps only the layer's inputs.
    """
    inside = {node.name for node in core[:-1]}
    needed = {
        base
        for node in core
        for base in _bases(forward, node.all_input_nodes)
        if base.node not in inside and base.node not in traced.constants
    }
    selective = {base for base in stash if base.node not in inside} | needed
    return Stash(
        none=sum(base.size_bytes for base in stash),
        selective=sum(base.size_bytes for base in selective),
        full=sum(size_bytes(tensor) for tensor in inputs),
    )


def _attention_core(forward: LiveGraph) -> list[fx.Node]:
    """Return the nodes from the first batched product (scores) to the last (context), in order.

    Fused attention has no such core: its scores are never kept and its own backward recomputes
    them, so selective recompute has nothing left to save.
    """
    products = [n for n in forward.nodes if name_of(n) in ("aten::bmm", "aten::baddbmm")]
    if len(products) < 2:
        return []
    first, last = products[0], products[-1]
    after = {first}
    for node in forward.order:
        if not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    before = ancestors([last])
    return [node for node in forward.nodes if node in after and node in before]


def _forward_peak(traced: Trace, live: LiveGraph, stash: set[Base], outputs: set[Base]) -> int:
    """Return the working set of the forward beyond the stash."""
    placeholders = {node.name: node for node in live.reached if node.op == "placeholder"}
    constants = {live.base(n) for name, n in placeholders.items() if name in traced.constants}
    arriving = {live.base(placeholders[n]) for n in traced.inputs if n in placeholders}
    return peak_bytes(live, arriving=arriving, leaving=outputs, uncounted=stash | constants)


def _backward_peak(traced: Trace, live: LiveGraph, stash: set[Base]) -> int:
    """Return the working set of the backward beyond the stash.

    A parameter's gradient is added to its accumulator as soon as it is there, so it does not stay.
    """
    placeholders = [node for node in live.reached if node.op == "placeholder"]
    arriving = {live.base(n) for n in placeholders if n.name.startswith("tangents")}
    held = {live.base(n) for n in placeholders} - arriving
    constants = len(traced.constants)
    return peak_bytes(
        live,
        arriving=arriving,
        leaving=_bases(live, live.outputs[constants:]),
        uncounted=stash | held,
    )

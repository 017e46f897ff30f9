"""The memory that nodes of a traced graph read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx

from phaze_opt.precision import ELEMENT_BYTES, Dtype
from phaze_opt.workload.capture.aten_node import dtype_of, is_view, results_of


@dataclass(frozen=True)
class ResultMemory:
    """The memory of one result of one node or placeholder; its views share it."""

    node: str
    index: int
    elements: int
    dtype: Dtype

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * ELEMENT_BYTES[self.dtype]


class LiveGraph:
    """The nodes of a traced graph that its outputs depend on, and the memory that they use.

    Tracing leaves dead nodes that draw random numbers (the forward's dropout in the backward
    graph), which PyTorch's dead-code removal keeps. A walk back from the outputs does not reach
    them.

    Attributes
    ----------
    outputs
        The output nodes; None for an output that is not a node.
    order
        Live nodes in order of execution.
    nodes
        Nodes of ``order`` that do work: calls that are not views.
    """

    def __init__(
        self, graph: fx.Graph, inherited: Mapping[str, ResultMemory] | None = None
    ) -> None:
        """Walk a graph.

        Parameters
        ----------
        graph
            One graph of a `phaze_opt.workload.capture.aot.Trace`.
        inherited
            By placeholder: the memory of another graph that it is (tensors saved by the forward).
        """
        self._inherited = dict(inherited or {})
        (output,) = graph.find_nodes(op="output")
        values: Any = output.args[0]
        self.outputs: list[fx.Node | None] = [
            value if isinstance(value, fx.Node) else None for value in values
        ]
        self.reached = ancestors(node for node in self.outputs if node is not None)
        self.order = [node for node in graph.nodes if node in self.reached]
        self.nodes = [n for n in self.order if n.op == "call_function" and not is_view(n)]
        self._bases: dict[fx.Node, ResultMemory] = {}
        self._readers: dict[ResultMemory, list[fx.Node]] = {}
        for node in self.nodes:
            for base in self.operands(node):
                self._readers.setdefault(base, []).append(node)

    def base(self, node: fx.Node) -> ResultMemory:
        """Return the memory of a node's (first) result."""
        if node not in self._bases:
            self._bases[node] = self._find_base(node)
        return self._bases[node]

    def _find_base(self, node: fx.Node) -> ResultMemory:
        """Follow views to the node that made the memory."""
        index = 0
        while node.op == "call_function" and is_view(node):
            source = node.all_input_nodes[0]
            if not is_view(source) and isinstance(source.meta.get("val"), tuple | list):
                index = _position(node)
            node = source
        if node.name in self._inherited:
            return self._inherited[node.name]
        return _base_of(node.name, index, results_of(node)[index])

    def readers(self, base: ResultMemory) -> list[fx.Node]:
        """Return the working nodes that read some memory."""
        return self._readers.get(base, [])

    def operands(self, node: fx.Node) -> set[ResultMemory]:
        """Return the memory that a working node reads."""
        return {self.base(operand) for operand in node.all_input_nodes}

    def written(self, node: fx.Node) -> tuple[ResultMemory, ...]:
        """Return the memory of a working node's results, without results that nothing uses."""
        results = results_of(node)
        if not isinstance(node.meta["val"], tuple | list):
            return (self.base(node),)
        used = sorted({_position(user) for user in node.users if user in self.reached})
        tensors = ((index, results[index]) for index in used)
        return tuple(
            _base_of(node.name, index, tensor) for index, tensor in tensors if tensor is not None
        )

    def read(self, operands: Iterable[fx.Node]) -> dict[ResultMemory, int]:
        """Return the elements that are read of each base, each distinct one once."""
        regions: dict[ResultMemory, dict[tuple[Any, ...], int]] = {}
        for operand in operands:
            for tensor in results_of(operand):
                if isinstance(tensor, Tensor):
                    region, size = _region(tensor)
                    regions.setdefault(self.base(operand), {})[region] = size
        return {
            base: min(base.elements, -(-sum(sizes.values()) // ELEMENT_BYTES[base.dtype]))
            for base, sizes in regions.items()
        }


def _position(node: fx.Node) -> int:
    """Return which result a ``getitem`` node takes."""
    return cast(int, node.args[1])


def ancestors(outputs: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the given nodes and all nodes that they depend on."""
    reached: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting.extend(node.all_input_nodes)
    return reached


def _region(tensor: Tensor) -> tuple[tuple[Any, ...], int]:
    """Return an identifier of the elements of memory that a tensor covers, and their bytes."""
    axes = sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if stride and size != 1
    )
    elements = 1
    for _, size in axes:
        elements *= size
    if tensor.numel() == 0:
        elements = 0
    return (tensor.storage_offset(), *axes), elements * tensor.element_size()


def _base_of(node: str, index: int, tensor: Any) -> ResultMemory:
    """Return the memory of one result of a node; none of what is no tensor."""
    if not isinstance(tensor, Tensor):
        return ResultMemory(node, index, 0, "uint8")
    return ResultMemory(node, index, tensor.numel(), dtype_of(tensor))

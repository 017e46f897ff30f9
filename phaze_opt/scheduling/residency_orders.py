"""Orders of the operators that the fast method tries, chosen without looking at any chip.

What an order is worth depends on which tensors fit, but a good order lets every tensor stay for a
short time. So the orders are local optima of the sum over tensors of weight × positions held, found
by moving one operator at a time as far as the precedences allow, from several starts. They depend
on precedences and sizes of tensors only: a larger global buffer gets the same orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled

if TYPE_CHECKING:
    from phaze_opt.scheduling.residency import TensorGraph

_MOST_PASSES = 20
"""Passes over all operators; a pass without an improvement ends the search."""


def candidate_orders(graph: TensorGraph) -> tuple[IntArray, ...]:
    """Give different topological orders, first the one nearest to the order of the operators.

    Raises
    ------
    ValueError
        If the edges form a cycle.
    """
    given = _list_order(graph, lambda ready: min(ready))
    backward = _list_order(graph, lambda ready: max(ready))
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    orders = [given]
    for weight in (graph.tensor_bytes.astype(np.float64), np.ones(len(graph.tensors))):
        for start in (given, backward):
            order = start.copy()
            _shorten_stays(order, edges, graph.access_operator, graph.first_access, weight)
            orders.append(order)
    unique = {tuple(order.tolist()): order for order in orders}
    return tuple(unique.values())


def _list_order(graph: TensorGraph, choose: Callable[[list[int]], int]) -> IntArray:
    """Build a topological order, choosing one of the operators that are ready at each step."""
    after: list[list[int]] = [[] for _ in range(graph.operators)]
    waiting = [0] * graph.operators
    for source, target in set(graph.edges):
        after[source].append(target)
        waiting[target] += 1
    ready = [operator for operator in range(graph.operators) if waiting[operator] == 0]
    order = []
    while ready:
        operator = choose(ready)
        ready.remove(operator)
        order.append(operator)
        for target in after[operator]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(order) < graph.operators:
        raise ValueError("the edges form a cycle")
    return np.array(order, dtype=np.int64)


@lazily_compiled("f8(i8[::1], i8[::1], i8[::1], f8[::1])", allocates=False)
def _held(place: IntArray, access_operator: IntArray, first: IntArray, weight: FloatArray) -> float:
    """Sum weight × positions held over all tensors."""
    total = 0.0
    for tensor in range(weight.shape[0]):
        lowest = highest = place[access_operator[first[tensor]]]
        for access in range(first[tensor] + 1, first[tensor + 1]):
            lowest = min(lowest, place[access_operator[access]])
            highest = max(highest, place[access_operator[access]])
        total += weight[tensor] * (highest - lowest)
    return total


@lazily_compiled("void(i8[::1], i8[::1], i8, i8)", allocates=False)
def _move(order: IntArray, place: IntArray, here: int, there: int) -> None:
    """Move the operator at one position to another one; those between make room."""
    operator = order[here]
    step = 1 if there > here else -1
    for position in range(here, there, step):
        order[position] = order[position + step]
        place[order[position]] = position
    order[there] = operator
    place[operator] = there


@lazily_compiled("void(i8[::1], i8[:, ::1], i8[::1], i8[::1], f8[::1])")
def _shorten_stays(
    order: IntArray,
    edges: IntArray,
    access_operator: IntArray,
    first: IntArray,
    weight: FloatArray,
) -> None:
    """Improve an order in place by moving single operators, until no move helps.

    Parameters
    ----------
    order
        Operators by position.
    edges
        (edges, 2): precedences.
    access_operator, first
        As in `TensorGraph`: operator of every access, first access of every tensor.
    weight
        Weight of every tensor.
    """
    n = order.shape[0]
    place = np.empty(n, dtype=np.int64)
    for position in range(n):
        place[order[position]] = position
    best = _held(place, access_operator, first, weight)
    for _ in range(_MOST_PASSES):
        improved = False
        for operator in range(n):
            lowest, highest = 0, n - 1
            for edge in range(edges.shape[0]):
                if edges[edge, 1] == operator:
                    lowest = max(lowest, place[edges[edge, 0]] + 1)
                if edges[edge, 0] == operator:
                    highest = min(highest, place[edges[edge, 1]] - 1)
            origin = target = place[operator]
            for there in range(lowest, highest + 1):
                _move(order, place, place[operator], there)
                held = _held(place, access_operator, first, weight)
                if held < best:
                    best, target = held, there
                    improved = True
            _move(order, place, place[operator], target)
            if target != origin and best <= 0.0:
                return
        if not improved:
            return

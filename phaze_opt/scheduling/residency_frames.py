"""What the fast method needs of a pass on every chip: orders, and which tensors it considers.

A *frame* is an order and a set of candidate tensors. Every candidate has a slot from its first to
its last position, so that the resident tensors at a position are a mask of slots. The search over
a frame visits at most ``sum over positions of 2 ** (slots in use)`` masks; where all tensors would
need more than `MOST_MASKS`, those that save most per position held come first.

Frames depend on the precedences and the tensors' sizes alone, not on the chip. So what is possible
in a frame with some global buffer is possible with a larger one too, and the best over all frames,
each searched exactly, is never slower with more global buffer. Large tensors must not keep small
ones out where only small ones fit. Therefore a frame that had to leave a tensor out is followed by
frames of the tensors of at most half the size, a quarter, and so on, until one holds all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.on_demand import cached_property
from phaze_opt.scheduling.residency_kernel import FrameArrays

if TYPE_CHECKING:
    from phaze_opt.scheduling.residency import TensorGraph

MOST_MASKS = 2**13
"""Masks that the search over one frame may visit: about a quarter of a millisecond."""


@dataclass(frozen=True, eq=False)
class Frame:
    """An order with candidate tensors, as arrays for the compiled search.

    Attributes
    ----------
    order
        Operator at every position.
    access_first, access
        Accesses at every position: numbers of accesses in the order of `TensorGraph.accesses`, and
        where those of each position begin: (positions + 1,), (accesses of candidates,).
    access_bit
        Bit of the slot of each of these accesses.
    access_load
        Bytes that each reads although the tensor is resident: an input's size for its first reader.
    live
        Slots in use at every position, as a mask.
    kept
        Slots that are still in use at the next position, as a mask.
    begin_first, begin_bit, begin_tensor
        Candidates whose stay begins at every position: bit of the slot, and the tensor.
    slots
        Number of slots.
    complete
        Whether every tensor is a candidate.
    """

    order: IntArray
    access_first: IntArray
    access: IntArray
    access_bit: IntArray
    access_load: IntArray
    live: IntArray
    kept: IntArray
    begin_first: IntArray
    begin_bit: IntArray
    begin_tensor: IntArray
    slots: int
    complete: bool

    @cached_property
    def arrays(self) -> FrameArrays:
        """The arrays, for the compiled search."""
        return (
            self.order, self.access_first, self.access, self.access_bit, self.access_load,
            self.live, self.kept, self.begin_first, self.begin_bit, self.begin_tensor,
        )  # fmt: skip


def build_frames(graph: TensorGraph) -> tuple[Frame, ...]:
    """Give the frames of all candidate orders."""
    return tuple(frame for order in graph.orders for frame in frames_of_order(graph, order))


def frames_of_order(graph: TensorGraph, order: IntArray) -> tuple[Frame, ...]:
    """Give the frames of one order: of all tensors, and of smaller and smaller ones if needed."""
    frames = []
    largest = max([tensor.bytes for tensor in graph.tensors], default=0)
    limit = largest
    while True:
        allowed = [i for i, tensor in enumerate(graph.tensors) if tensor.bytes <= limit]
        chosen = _choose_candidates(graph, order, allowed)
        frames.append(_build_frame(graph, order, chosen))
        if len(chosen) == len(allowed):
            return tuple(frames)
        limit //= 2


def _stays(graph: TensorGraph, order: IntArray) -> list[tuple[int, int]]:
    """Give the first and the last position of every tensor."""
    place = {operator: position for position, operator in enumerate(order.tolist())}
    positions = [[place[access] for access in tensor.accesses] for tensor in graph.tensors]
    return [(min(own), max(own)) for own in positions]


def _choose_candidates(graph: TensorGraph, order: IntArray, allowed: list[int]) -> list[int]:
    """Admit tensors by accesses saved per position held, while the search stays small."""
    stays = _stays(graph, order)

    def worth(i: int) -> float:
        tensor = graph.tensors[i]
        # The first read of an input and the write of what outlives the pass are not saved.
        paid = tensor.producer is None or tensor.outlives
        return (len(tensor.accesses) - 0.9 * paid) / (1 + stays[i][1] - stays[i][0])

    masks = np.ones(len(order), dtype=np.int64)
    chosen = []
    for i in sorted(allowed, key=lambda i: (-worth(i), i)):
        first, last = stays[i]
        more = int(masks[first : last + 1].sum())
        if int(masks.sum()) + more <= MOST_MASKS:
            masks[first : last + 1] *= 2
            chosen.append(i)
    return sorted(chosen)


def _build_frame(graph: TensorGraph, order: IntArray, chosen: list[int]) -> Frame:
    """Assign slots, lowest first, and list what happens at every position."""
    stays = _stays(graph, order)
    place = {operator: position for position, operator in enumerate(order.tolist())}
    accesses: list[list[tuple[int, int, int]]] = [[] for _ in order]
    begins: list[list[tuple[int, int]]] = [[] for _ in order]
    live = np.zeros(len(order), dtype=np.int64)
    for i in sorted(chosen, key=lambda i: (stays[i], i)):
        first, last = stays[i]
        taken = int(np.bitwise_or.reduce(live[first : last + 1]))
        bit = ~taken & (taken + 1)
        live[first : last + 1] |= bit
        begins[first].append((bit, i))
    kept = np.zeros(len(order), dtype=np.int64)
    bit_of = {i: bit for here in begins for bit, i in here}
    for i, bit in bit_of.items():
        first, last = stays[i]
        kept[first:last] |= bit
        start = int(graph.first_access[i])
        tensor = graph.tensors[i]
        for number, operator in enumerate(tensor.accesses, start=start):
            loads = tensor.producer is None and place[operator] == first
            accesses[place[operator]].append((number, bit, tensor.bytes if loads else 0))
    # The order of the accesses of an operator is that in which `evaluate_plan` subtracts.
    at = [sorted(here) for here in accesses]
    return Frame(
        order=order,
        access_first=_offsets([len(here) for here in at]),
        access=_column(at, 0),
        access_bit=_column(at, 1),
        access_load=_column(at, 2),
        live=live,
        kept=kept,
        begin_first=_offsets([len(here) for here in begins]),
        begin_bit=_column(begins, 0),
        begin_tensor=_column(begins, 1),
        slots=max([int(mask).bit_length() for mask in live], default=0),
        complete=len(chosen) == len(graph.tensors),
    )


def _offsets(counts: list[int]) -> IntArray:
    """Give the sums of the counts before each place, and of all."""
    return np.cumsum([0, *counts]).astype(np.int64)


def _column(rows: Sequence[Sequence[tuple[int, ...]]], index: int) -> IntArray:
    """Concatenate one column of all rows."""
    return np.array([entry[index] for here in rows for entry in here], dtype=np.int64)

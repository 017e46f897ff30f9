"""All downsets of a directed acyclic graph, and the steps from each to the next larger ones.

A downset is a set of nodes that holds all predecessors of its nodes. The differences of two nested
downsets are exactly the contiguous (convex) sets of nodes: the candidates for a pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze_opt.arrays import IntArray


class TooManyDownsetsError(Exception):
    """The graph has more downsets than the limit of the caller."""


@dataclass(frozen=True)
class Downsets:
    """All downsets, by rising size; the first is empty and the last holds all nodes.

    Attributes
    ----------
    bits : (downsets, words)
        Members as bits, 64 nodes per word.
    grow_start : (downsets + 1,)
        Index of the first step of each downset in the next two arrays.
    grow_node, grow_to : (steps,)
        The node that a step adds, and the index of the downset with this node.
    """

    bits: NDArray[np.uint64]
    grow_start: IntArray
    grow_node: IntArray
    grow_to: IntArray

    def __len__(self) -> int:
        return len(self.bits)

    def members(self, smaller: int, larger: int) -> list[int]:
        """Return the nodes in the larger of two nested downsets and not in the smaller one."""
        difference = self.bits[larger] & ~self.bits[smaller]
        whole = b"".join(int(word).to_bytes(8, "little") for word in difference)
        value = int.from_bytes(whole, "little")
        return [node for node in range(value.bit_length()) if value >> node & 1]


def enumerate_downsets(
    count: int, edges: Iterable[tuple[int, int]], most: int = 1_000_000
) -> Downsets:
    """List all downsets of a graph.

    Parameters
    ----------
    count
        Number of nodes.
    edges
        ``(source, destination)`` pairs of an acyclic graph.
    most
        Limit on the number of downsets.

    Raises
    ------
    TooManyDownsetsError
        If there are more downsets.
    """
    needs = [0] * count
    after: list[set[int]] = [set() for _ in range(count)]
    for source, destination in edges:
        needs[destination] |= 1 << source
        after[source].add(destination)
    following = [sorted(nodes) for nodes in after]
    index_of = {0: 0}
    sets = [0]
    ready = [sum(1 << node for node in range(count) if needs[node] == 0)]
    start, nodes, targets = [0], [], []
    position = 0
    # Breadth first: the loop appends the downsets with one more node to the list that it walks.
    while position < len(sets):
        here, may_come = sets[position], ready[position]
        rest = may_come
        while rest:
            bit = rest & -rest
            rest ^= bit
            node = bit.bit_length() - 1
            larger = here | bit
            index = index_of.get(larger)
            if index is None:
                index = len(sets)
                if index >= most:
                    raise TooManyDownsetsError
                index_of[larger] = index
                sets.append(larger)
                free = may_come ^ bit
                for successor in following[node]:
                    if needs[successor] & ~larger == 0:
                        free |= 1 << successor
                ready.append(free)
            nodes.append(node)
            targets.append(index)
        start.append(len(nodes))
        position += 1
    words = max(1, -(-count // 64))
    raw = b"".join(value.to_bytes(8 * words, "little") for value in sets)
    bits = np.frombuffer(raw, dtype="<u8").reshape(len(sets), words).astype(np.uint64)
    as_array = [np.asarray(values, dtype=np.int64) for values in (start, nodes, targets)]
    return Downsets(bits, *as_array)

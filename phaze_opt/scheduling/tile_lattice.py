"""What the search for tiles goes through: sets of operators that have run, and steps between them.

A *node* is a set of operators that may have run, an *arc* a step from one node to another: an
operator by itself, or a group that is cut into some number of tiles. At a node, tensors that
operators have touched and others still will are resident or not: the search keeps the best way to
every such mask (`tile_kernel`). Each arc lists what may be chosen while it runs, as bits: the
resident tensors of its node, then tensors that begin to be resident in it, those that are passed by
tiles, and inputs that are held.

The lattice of all orders holds every plan. The fast one holds those in the candidate orders of
`residency_orders`, and what these can be joined to; where masks would be too many, tensors that
save little and then groups are left out. Neither depends on the chip, so that what is possible
with some global buffer is possible with a larger one too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.on_demand import cached_property
from phaze_opt.scheduling.tile_kernel import LatticeArrays
from phaze_opt.scheduling.tiles import MOST_GROUP, TileGraph

MOST_MASKS = 2**13
"""Masks of all arcs of a fast lattice."""
MOST_ARC_BITS = 14
"""Choices of one arc of a fast lattice."""
MOST_ALL_MASKS = 2**22
"""Masks of all arcs of the lattice of all orders: about a second."""


@dataclass(frozen=True)
class Arc:
    """A step from one set of operators that have run to another.

    Attributes
    ----------
    before, after
        The sets, as masks of operators.
    operators
        That run, in the order in which they take turns.
    tiles
        Of each.
    """

    before: int
    after: int
    operators: tuple[int, ...]
    tiles: int


@dataclass(frozen=True)
class ArcBits:
    """What may be chosen while an arc runs; each choice is one bit, in this order.

    Attributes
    ----------
    crossing, starting
        Tensors that may be resident since before, and that may begin to be.
    passed, held
        As in `tiles.Step`.
    """

    crossing: tuple[int, ...]
    starting: tuple[int, ...]
    passed: tuple[int, ...]
    held: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of bits."""
        return len(self.crossing) + len(self.starting) + len(self.passed) + len(self.held)

    def chosen(self, mask: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the resident and passed tensors and the held inputs of a mask."""
        parts, first = [], 0
        for choices in ((*self.crossing, *self.starting), self.passed, self.held):
            parts.append(tuple([i for k, i in enumerate(choices) if mask >> first + k & 1]))
            first += len(choices)
        return parts[0], parts[1], parts[2]


@dataclass(frozen=True, eq=False)
class TileLattice:
    """Nodes and arcs, and the same as arrays.

    Attributes
    ----------
    tiles
        What may run tile by tile.
    nodes
        Masks of operators, those with fewer operators first.
    arcs, bits
        Sorted by the node where they begin, and what may be chosen in each.
    """

    tiles: TileGraph
    nodes: tuple[int, ...]
    arcs: tuple[Arc, ...]
    bits: tuple[ArcBits, ...]

    @cached_property
    def has_groups(self) -> bool:
        """Whether an arc is a group."""
        return any(arc.tiles > 1 for arc in self.arcs)

    @cached_property
    def arrays(self) -> LatticeArrays:
        """The arrays for the compiled search; see `tile_kernel.LatticeArrays`."""
        return _arrays(self)


def lattice_of_all(tiles: TileGraph) -> TileLattice | None:
    """Give the lattice of all orders and groups; ``None`` where it is too large."""
    needs = _predecessors(tiles)
    count = len(needs)
    nodes, seen = [0], {0}
    for node in nodes:
        for operator in range(count):
            after = node | 1 << operator
            if after not in seen and not needs[operator] & ~node:
                seen.add(after)
                nodes.append(after)
        if len(nodes) > MOST_ALL_MASKS >> 8:
            return None
    lattice = _lattice(tiles, nodes, list(range(len(tiles.graph.tensors))))
    masks = sum(1 << own.count for own in lattice.bits)
    return lattice if masks <= MOST_ALL_MASKS else None


def lattice_of_orders(tiles: TileGraph) -> TileLattice:
    """Give the lattice of the candidate orders."""
    seen = {0}
    for order in tiles.graph.orders:
        node = 0
        for operator in order.tolist():
            node |= 1 << operator
            seen.add(node)
    nodes = sorted(seen, key=lambda node: (node.bit_count(), node))
    tensors = tiles.graph.tensors

    def worth(i: int) -> float:
        paid = tensors[i].producer is None or tensors[i].outlives
        touched = _touched(tiles, i)
        held = sum(1 for node in nodes if node & touched and touched & ~node)
        return (len(tensors[i].accesses) - 0.9 * paid) / (1 + held)

    alone = _lattice(tiles, nodes, list(range(len(tensors))), most_group=1)
    masks = np.ones(len(alone.arcs), dtype=np.int64)
    chosen: list[int] = []
    for i in sorted(range(len(tensors)), key=lambda i: (-worth(i), i)):
        here = np.array([i in own.crossing or i in own.starting for own in alone.bits])
        if masks.sum() + masks[here].sum() <= MOST_MASKS // 2:
            masks[here] *= 2
            chosen.append(i)
    whole = _lattice(tiles, nodes, sorted(chosen))
    left, kept = MOST_MASKS, []
    pairs = list(zip(whole.arcs, whole.bits, strict=True))

    def rank(pair: tuple[Arc, ArcBits]) -> tuple[bool, bool, int]:
        group = pair[0].tiles > 1
        return group, group and not tiles.sums.isdisjoint(pair[0].operators), pair[1].count

    for arc, own in sorted(pairs, key=rank):
        needed = 1 << own.count
        if arc.tiles == 1 or (own.count <= MOST_ARC_BITS and needed <= left):
            kept.append((arc, own))
            left -= needed
    place = {node: number for number, node in enumerate(nodes)}
    kept.sort(key=lambda pair: (place[pair[0].before], pair[0].operators, pair[0].tiles))
    arcs, bits = tuple([arc for arc, _ in kept]), tuple([own for _, own in kept])
    return TileLattice(tiles, tuple(nodes), arcs, bits)


def _predecessors(tiles: TileGraph) -> list[int]:
    """Return the operators before each, as masks."""
    needs = [0] * tiles.graph.operators
    for before, after in tiles.graph.edges:
        needs[after] |= 1 << before
    return needs


def _touched(tiles: TileGraph, tensor: int) -> int:
    """Return the operators that make or read a tensor, as a mask."""
    return sum(1 << operator for operator in tiles.graph.tensors[tensor].accesses)


def _lattice(
    tiles: TileGraph, nodes: list[int], tensors: list[int], most_group: int = MOST_GROUP
) -> TileLattice:
    """Join nodes by all arcs; ``tensors`` may be resident."""
    known, needs = set(nodes), _predecessors(tiles)
    joined = _handed(tiles)

    def following(node: int) -> list[int]:
        return [
            operator
            for operator, before in enumerate(needs)
            if not node >> operator & 1 and not before & ~node and node | 1 << operator in known
        ]

    next_of = {node: following(node) for node in nodes}
    arcs = []
    for node in nodes:
        arcs += [Arc(node, node | 1 << one, (one,), 1) for one in next_of[node]]
        for group in _groups(tiles, node, next_of.__getitem__, joined, most_group):
            turns = tuple(sorted(group, key=tiles.position.__getitem__))
            after = node | sum(1 << one for one in group)
            arcs += [Arc(node, after, turns, count) for count in tiles.common_counts(turns)]
    bits = tuple([_bits(tiles, arc, tensors) for arc in arcs])
    return TileLattice(tiles, tuple(nodes), tuple(arcs), bits)


def _handed(tiles: TileGraph) -> list[tuple[int, int]]:
    """Return of every operator those with tiles between them, and with any edge, as masks."""
    rows = [[0, 0] for _ in range(tiles.graph.operators)]
    for edge in tiles.graph.edges:
        for one, other in (edge, edge[::-1]):
            rows[one][0] |= (edge in tiles.through) << other
            rows[one][1] |= 1 << other
    return [(through, every) for through, every in rows]


def _groups(
    tiles: TileGraph,
    node: int,
    following: Callable[[int], list[int]],
    handed: list[tuple[int, int]],
    most: int,
) -> Iterator[frozenset[int]]:
    """Yield the groups that may run next: each of their operators hands another one something."""
    seen: set[int] = set()

    def grow(group: int, members: tuple[int, ...]) -> Iterator[frozenset[int]]:
        if len(members) > 1 and all(handed[one][0] & group for one in members):
            yield frozenset(members)
        if len(members) == most:
            return
        for one in following(node | group):
            larger = group | 1 << one
            by_tiles, any_edge = handed[one]
            if larger in seen or any_edge & ~by_tiles & group:
                continue
            seen.add(larger)
            if tiles.common_counts((one, *members)):
                yield from grow(larger, (*members, one))

    if most > 1:
        yield from grow(0, ())


def _bits(tiles: TileGraph, arc: Arc, tensors: list[int]) -> ArcBits:
    """List what may be chosen in an arc."""
    runs = arc.before ^ arc.after
    crossing, starting = [], []
    for i in tensors:
        touched = _touched(tiles, i)
        if touched & arc.before and touched & ~arc.before:
            crossing.append(i)
        elif touched & runs and not touched & arc.before:
            starting.append(i)
    passed, held = [], []
    if arc.tiles > 1:
        passed = tiles.passed_in(frozenset(arc.operators))
        held = [i for i, own in enumerate(tiles.held) if own.operator in arc.operators]
    return ArcBits(tuple(crossing), tuple(starting), tuple(passed), tuple(held))


def _entries(tiles: TileGraph, arc: Arc, bits: ArcBits) -> list[list[tuple[int, int, int]]]:
    """List for every operator of an arc what it saves: access, bits of which one is needed, load.

    Accesses of whole operators are those of `TensorGraph.accesses`, those of tile operators follow.
    """
    graph, members = tiles.graph, frozenset(arc.operators)
    residents = (*bits.crossing, *bits.starting)
    whole = {i: 1 << place for place, i in enumerate(residents)}
    by_tiles = {i: 1 << place for place, i in enumerate(bits.passed, start=len(whole))}
    first_held = len(whole) + len(by_tiles)
    rows = []
    for operator in arc.operators:
        own = []
        for i, tensor in enumerate(graph.tensors):
            if operator not in tensor.accesses:
                continue
            needed = whole.get(i, 0)
            if operator != tensor.producer:
                needed |= by_tiles.get(i, 0)
            elif tensor.outlives:
                continue
            elif members.issuperset(tensor.readers):
                needed |= by_tiles.get(i, 0)
            first = min(members.intersection(tensor.accesses), key=tiles.position.__getitem__)
            loads = tensor.producer is None and operator == first and i in bits.starting
            if needed:
                own.append((_access(tiles, arc, operator, i), needed, loads * tensor.bytes))
        for place, number in enumerate(bits.held, start=first_held):
            held = tiles.held[number]
            if held.operator == operator:
                access = _access(tiles, arc, operator, len(graph.tensors) + number)
                own.append((access, 1 << place, held.moved_bytes))
        rows.append(own)
    return rows


def _access(tiles: TileGraph, arc: Arc, operator: int, tensor: int) -> int:
    """Return the number of an access among those of whole operators and of tile operators."""
    graph = tiles.graph
    if arc.tiles == 1:
        first = int(graph.first_access[tensor])
        return first + graph.tensors[tensor].accesses.index(operator)
    row = tiles.row_of[operator, arc.tiles]
    return len(graph.accesses) + tiles.access_of[row, tensor]


def _arrays(lattice: TileLattice) -> LatticeArrays:
    """Write a lattice as arrays."""
    tiles = lattice.tiles
    graph = tiles.graph
    place = {node: number for number, node in enumerate(lattice.nodes)}
    crossing: dict[int, tuple[int, ...]] = {lattice.nodes[-1]: ()}
    for arc, bits in zip(lattice.arcs, lattice.bits, strict=True):
        crossing[arc.before] = bits.crossing
    rows, entries, sizes, outs, clashes = [], [], [], [], []
    for arc, bits in zip(lattice.arcs, lattice.bits, strict=True):
        out = {i: 1 << bit for bit, i in enumerate(crossing[arc.after])}
        residents = (*bits.crossing, *bits.starting)
        whole = {i: 1 << bit for bit, i in enumerate(residents)}
        sizes.append(
            [
                *[graph.tensors[i].bytes for i in residents],
                *[tiles.tile_bytes(i, arc.tiles) for i in bits.passed],
                *[tiles.held[number].bytes for number in bits.held],
            ]
        )
        others = [0] * (len(bits.passed) + len(bits.held))
        outs.append([*[out.get(i, 0) for i in residents], *others])
        clashes.append(
            [*[0] * len(residents), *[whole.get(i, 0) for i in bits.passed], *[0] * len(bits.held)]
        )
        rows.append(
            list(arc.operators)
            if arc.tiles == 1
            else [graph.operators + tiles.row_of[one, arc.tiles] for one in arc.operators]
        )
        entries += _entries(tiles, arc, bits)
    masks = [1 << len(crossing.get(node, ())) for node in lattice.nodes]
    flat = [entry for own in entries for entry in own]
    arrays = (
        _offsets(masks),
        _numbers([place[arc.before] for arc in lattice.arcs]),
        _numbers([place[arc.after] for arc in lattice.arcs]),
        _numbers([len(bits.crossing) for bits in lattice.bits]),
        _offsets(map(len, sizes)),
        *[_numbers(chain.from_iterable(each)) for each in (sizes, outs, clashes)],
        _offsets(map(len, rows)),
        _numbers(chain.from_iterable(rows)),
        _offsets(map(len, entries)),
        *[_numbers(entry[k] for entry in flat) for k in range(3)],
    )
    return cast(LatticeArrays, arrays)


def _offsets(counts: Iterable[int]) -> IntArray:
    """Give the sums of the counts before each place, and of all."""
    return np.cumsum([0, *counts]).astype(np.int64)


def _numbers(values: Iterable[int]) -> IntArray:
    """Write whole numbers as an array."""
    return np.array(list(values), dtype=np.int64)

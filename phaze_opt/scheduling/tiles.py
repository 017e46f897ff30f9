"""Operators that run tile by tile in groups, as data, and the evaluation of one plan.

An operator may be cut into equal *tiles*, of rows or of whole matrices. A *group* is a set of
operators that are cut into equally many tiles and run side by side in the order of the loop

    for every tile: for every operator of the group: run the operator on the tile.

What one operator of a group hands to another may then be *passed* by tiles: it needs room for two
tiles in the global buffer (one is read while the next one is made), not for the whole tensor, and
its readers in the group do not read it from HBM; its producer does not write it unless somebody
else needs it. An input that an operator reads again for every tile (a weight) may be *held*: it
then occupies the buffer for as long as the group runs, and is read once; so may a sum to which
every tile adds (the gradient of a weight), which is then written once. All other tensors may be
resident as in `residency`, and then stay from the begin of the first group that touches them to the
end of the last one, since the operators of a group take turns.

The rooms of all tensors that are passed, held or resident count for the whole time of the group,
beside the working bytes of the operator that runs. So the buffer holds what is in it at every
instant, whatever the order of operators in a group is.

A tile operator has levels as a whole operator has, with bytes and seconds for all its tiles
together. It takes the constant per operator once: a group is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.on_demand import cached_property
from phaze_opt.scheduling.residency import TensorGraph
from phaze_opt.scheduling.schedule_problem import HeldInput, sorted_topologically

if TYPE_CHECKING:
    from phaze_opt.scheduling.tile_lattice import TileLattice

MOST_GROUP = 8
"""Operators of a group."""
BUFFERED_TILES = 2
"""Tiles of a passed tensor that the buffer holds."""


class TileRow(NamedTuple):
    """An operator that is cut into a number of tiles."""

    operator: int
    tiles: int


@dataclass(frozen=True, eq=False)
class TileGraph:
    """What may run tile by tile, whatever the chip.

    Attributes
    ----------
    graph
        Operators and tensors.
    counts
        For every operator, into how many tiles it may be cut, all above 1; none if it may not.
    through
        Precedences between operators of which the second one can begin with a tile as soon as the
        first one has made it. Operators with another precedence between them are in no one group.
    held
        Inputs and sums that may be held.
    sums
        Operators of which every tile adds to all of the result. Where groups are too many, those
        with such an operator are left out first.
    """

    graph: TensorGraph
    counts: tuple[tuple[int, ...], ...]
    through: frozenset[tuple[int, int]]
    held: tuple[HeldInput, ...] = ()
    sums: frozenset[int] = frozenset()

    @cached_property
    def rows(self) -> tuple[TileRow, ...]:
        """All tile operators, operator by operator."""
        return tuple(TileRow(i, tiles) for i, counts in enumerate(self.counts) for tiles in counts)

    @cached_property
    def row_columns(self) -> IntArray:
        """Operators and tiles of `rows`: (2, tile operators)."""
        return np.array(self.rows, dtype=np.int64).reshape(-1, 2).T.copy()

    @cached_property
    def row_of(self) -> dict[tuple[int, int], int]:
        """Place of every tile operator among `rows`."""
        return {row: place for place, row in enumerate(self.rows)}

    @cached_property
    def accesses(self) -> tuple[tuple[int, int], ...]:
        """Pairs (tile operator, tensor) in the order of `rows`; held inputs follow the tensors."""
        tensors: list[list[int]] = [[] for _ in self.counts]
        for i, tensor in enumerate(self.graph.tensors):
            for operator in tensor.accesses:
                tensors[operator].append(i)
        for i, held in enumerate(self.held, start=len(self.graph.tensors)):
            tensors[held.operator].append(i)
        return tuple(
            (place, i) for place, row in enumerate(self.rows) for i in tensors[row.operator]
        )

    @cached_property
    def access_row(self) -> IntArray:
        """Tile operator of every access: (accesses,)."""
        return np.array([row for row, _ in self.accesses], dtype=np.int64)

    @cached_property
    def access_of(self) -> dict[tuple[int, int], int]:
        """Number of the access of a tile operator to a tensor."""
        return {access: number for number, access in enumerate(self.accesses)}

    @cached_property
    def must_write(self) -> FloatArray:
        """0 for every access that is a write of a tensor that outlives the pass, else 1."""
        tensors = self.graph.tensors
        writes = [
            i < len(tensors)
            and tensors[i].outlives
            and tensors[i].producer == self.rows[row].operator
            for row, i in self.accesses
        ]
        return 1.0 - np.array(writes, dtype=np.float64)

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Place of every operator in the order in which the operators of a group take turns."""
        order, _, _ = sorted_topologically(self.graph.operators, self.graph.edges)
        place = np.empty(self.graph.operators, dtype=np.int64)
        place[order] = np.arange(self.graph.operators)
        return tuple(place.tolist())

    def common_counts(self, operators: Iterable[int]) -> tuple[int, ...]:
        """Return into how many tiles all of some operators may be cut."""
        first, *others = operators
        return tuple(
            tiles for tiles in self.counts[first] if all(tiles in self.counts[i] for i in others)
        )

    def passed_in(self, group: frozenset[int]) -> list[int]:
        """Return the tensors that operators of a group may pass by tiles."""
        return [
            i
            for i, tensor in enumerate(self.graph.tensors)
            if tensor.producer in group and not group.isdisjoint(tensor.readers)
        ]

    def tile_bytes(self, tensor: int, tiles: int) -> int:
        """Return the room that a tensor needs that is passed by tiles."""
        return BUFFERED_TILES * -(-self.graph.tensors[tensor].bytes // tiles)

    @cached_property
    def fast_lattice(self) -> TileLattice:
        """What the fast method searches: the orders of `TensorGraph.orders`."""
        from phaze_opt.scheduling.tile_lattice import lattice_of_orders

        return lattice_of_orders(self)

    @cached_property
    def whole_lattice(self) -> TileLattice | None:
        """All orders and all groups; ``None`` where they are too many."""
        from phaze_opt.scheduling.tile_lattice import lattice_of_all

        return lattice_of_all(self)


@dataclass(frozen=True, eq=False)
class TilePrices:
    """What tile operators need and take on one chip, in the order of `TileGraph.rows`.

    All bytes and seconds are of all tiles together, but for ``working_bytes``.

    Attributes
    ----------
    working_bytes, hbm_bytes, other_s : (tile operators, levels)
        As of `residency.Residency`.
    saved_bytes : (accesses, levels)
        HBM bytes that the tile operator of an access saves if the tensor is in the buffer, in the
        order of `TileGraph.accesses`.
    """

    working_bytes: IntArray
    hbm_bytes: FloatArray
    other_s: FloatArray
    saved_bytes: FloatArray


@dataclass(frozen=True, eq=False)
class LeastMoves:
    """What operators move if they read nothing twice, whatever the chip.

    Attributes
    ----------
    cut : (operators,)
        Whether each may be cut.
    moved_bytes : (operators,)
        From and to HBM, with nothing kept.
    saved_bytes : (accesses,)
        Of these what each access saves, in the order of `residency.TensorGraph.accesses`.
    access_tensor : (accesses,)
        Tensor of every access; the number of tensors where it is handed on by tiles.
    tensor_bytes : (tensors + 1,)
        Sizes of the tensors, and 0.
    """

    cut: BoolArray
    moved_bytes: FloatArray
    saved_bytes: FloatArray
    access_tensor: IntArray
    tensor_bytes: IntArray


@dataclass(frozen=True, eq=False)
class Tiling:
    """The part of a joint problem that is about tiles.

    Attributes
    ----------
    graph
        What may run tile by tile.
    least_s : (operators,)
        Least time of every operator in every plan, with tiles and without.
    find_prices
        Gives the prices of tile operators, which take longer than a problem that needs none.
    """

    graph: TileGraph
    least_s: FloatArray
    find_prices: Callable[[], TilePrices]

    @cached_property
    def prices(self) -> TilePrices:
        """What tile operators need and take."""
        return self.find_prices()

"""What operators of a pass take that run tile by tile, as the scheduler takes it.

Which operators may is said by `phaze_opt.estimator.cut_operators`. Each tile is estimated as an
operator of its own, on all cores: a tile of fewer rows fills and drains the arrays as often as a
product of so few rows does, and its blocks are those of such a product. An operator takes the time
of one tile times their number, and on no resource less than the whole operator, which could run in
the same way. The constant per operator is taken once: a group is one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import IntArray
from phaze_opt.estimator.cut_operators import (
    TileOperators,
    cut_graph,
    handing_by_tiles,
    tile_operators,
)
from phaze_opt.estimator.estimate import ModeEstimate, estimate_on_cores
from phaze_opt.estimator.working_sets import kept_tensors, saved_by_accesses, working_sets
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.residency import tensor_graph, with_hbm_bytes
from phaze_opt.scheduling.residency import Residency
from phaze_opt.scheduling.schedule_problem import HeldInput, TiledGroup
from phaze_opt.scheduling.tile_search import least_tiled_s
from phaze_opt.scheduling.tiles import LeastMoves, TileGraph, TilePrices, Tiling
from phaze_opt.workload.graph import OperatorGraph


@lru_cache(maxsize=512)
def tile_graph(graph: OperatorGraph) -> TileGraph:
    """Return what of a graph may run tile by tile, as the scheduler takes it."""
    cut = cut_graph(graph)
    held = tuple(
        HeldInput(operator, tensor.elements * tensor.element_bytes)
        for operator, number in cut.held
        for tensor in (graph.tensors[number],)
    )
    return TileGraph(tensor_graph(graph), cut.counts, cut.through, held)


@dataclass(frozen=True, eq=False)
class TiledPass:
    """The operators of one pass on one chip, to be cut into tiles.

    Attributes
    ----------
    graph
        Fused.
    all_cores
        Its estimates on all cores.
    accelerator
        The chip.
    lane_rate
        Rate of the vector lanes relative to the accelerator's.
    """

    graph: OperatorGraph
    all_cores: ModeEstimate
    accelerator: Accelerator
    lane_rate: float

    @cached_property
    def _tiles(self) -> TileOperators:
        return _tile_operators(self.graph)

    @cached_property
    def _one_tile(self) -> ModeEstimate:
        """One tile of every tile operator."""
        cores = max(self.accelerator.num_tc, self.accelerator.num_vc)
        mode = estimate_on_cores(self._tiles.graph, self.accelerator, cores)
        return replace(mode, vc_s=mode.vc_s / self.lane_rate)

    @cached_property
    def _rows(self) -> IntArray:
        """Whole operator, and number of tiles, of every tile operator: (2, tile operators)."""
        return np.array(tile_graph(self.graph).rows, dtype=np.int64).reshape(-1, 2).T

    @cached_property
    def mode(self) -> ModeEstimate:
        """All tiles of every tile operator, without what the HBM moves and its energy."""
        operators, tiles = self._rows
        none = np.zeros(len(operators))
        one = with_hbm_bytes(self._one_tile, none, self.accelerator)
        whole = with_hbm_bytes(self.all_cores.rows(operators), none, self.accelerator)
        pairs = zip(one.arrays(), whole.arrays(), strict=True)
        mode = ModeEstimate(*(np.maximum((each.T * tiles).T, of_whole) for each, of_whole in pairs))
        return replace(mode, latency_s=mode.busy_s + whole.overhead_s)

    def prices(self) -> TilePrices:
        """Return what the scheduler takes of tile operators."""
        _, tiles = self._rows
        sets = working_sets(self._tiles.graph, self.accelerator)
        rate = self.accelerator.sustained_hbm_bytes_per_s
        moved = self._one_tile.hbm_s[:, np.newaxis] * rate + sets.extra_bytes
        others = [self.mode.tc_s, self.mode.glb_s, self.mode.link_s]
        lanes_s = self.mode.vc_s[:, np.newaxis] * sets.lane_factor
        accesses = [each for own in self._tiles.accesses for each in own]
        row = tile_graph(self.graph).access_row
        saved = saved_by_accesses(
            row,
            np.array([each.bytes for each in accesses], dtype=np.float64),
            np.array([each.operand_bytes for each in accesses], dtype=np.float64).reshape(-1, 2),
            sets,
        )
        return TilePrices(
            working_bytes=sets.working_bytes,
            hbm_bytes=moved * tiles[:, np.newaxis],
            other_s=np.maximum(np.maximum.reduce(others)[:, np.newaxis], lanes_s),
            saved_bytes=saved * tiles[row][:, np.newaxis],
        )

    def tiling(self, residency: Residency) -> Tiling:
        """Return the part of a joint problem that is about tiles.

        Parameters
        ----------
        residency
            The problem without tiles.
        """
        least_s = least_tiled_s(residency, _least_moves(self.graph))
        return Tiling(tile_graph(self.graph), least_s, self.prices)

    def in_groups(self, groups: Sequence[TiledGroup]) -> ModeEstimate:
        """Return the estimates of whole operators, but of tiles where they are in a group.

        What a tile operator moves from and to the HBM is left out, with its energy.
        """
        row_of = tile_graph(self.graph).row_of
        whole = [one for group in groups for one in group.operators]
        cut = [row_of[one, group.tiles] for group in groups for one in group.operators]
        changed = []
        for values, of_tiles in zip(self.all_cores.arrays(), self.mode.arrays(), strict=True):
            copied = values.copy()
            copied[whole] = of_tiles[cut]
            changed.append(copied)
        return ModeEstimate(*changed)


@lru_cache(maxsize=512)
def _tile_operators(graph: OperatorGraph) -> TileOperators:
    """Return one tile of every tile operator of a graph, cached."""
    return tile_operators(graph, tile_graph(graph).rows)


@lru_cache(maxsize=512)
def _least_moves(graph: OperatorGraph) -> LeastMoves:
    """Return what operators move that read nothing twice, cached."""
    tensors, kept = tensor_graph(graph), kept_tensors(graph)
    handing = [handing_by_tiles(graph, each) for each in kept]
    accesses = [
        access
        for each in kept
        for access in (() if each.writer is None else (each.writer,)) + each.readers
    ]
    room = [len(kept) if one in handing[i] else i for i, one in tensors.accesses]
    return LeastMoves(
        np.array([bool(counts) for counts in cut_graph(graph).counts], dtype=np.bool_),
        np.array(graph.moved_bytes, dtype=np.float64),
        np.array([each.bytes for each in accesses], dtype=np.float64) * tensors.must_write,
        np.array(room, dtype=np.int64),
        np.append(tensors.tensor_bytes, 0),
    )

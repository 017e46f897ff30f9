"""What operators of a pass take that run tile by tile, as the scheduler takes it.

Which operators may is said by `phaze_opt.estimator.cut_operators`. Each tile is estimated as an
operator of its own, on all cores: a tile of fewer rows fills and drains the arrays as often as a
product of so few rows does, and its blocks are those of such a product. An operator takes the time
of one tile times their number, and on no resource less than the whole operator, which could run in
the same way. The constant per operator is taken once: a group is one program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.cut_operators import cut_graph, handing_by_tiles
from phaze_opt.estimator.estimate import (
    ModeEstimate,
    WorkOnCores,
    with_energy,
    work_on_cores,
)
from phaze_opt.estimator.tile_operators import TileOperators, tile_operators
from phaze_opt.estimator.working_sets import kept_tensors, saved_by_accesses, working_sets
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.residency import tensor_graph, with_hbm_bytes
from phaze_opt.precision import SUM_BYTES
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
        HeldInput(
            operator,
            tensor.elements * (SUM_BYTES if operator in cut.sums and tensor.writers else own),
            tensor.elements * own,
        )
        for operator, number in cut.held
        for tensor in (graph.tensors[number],)
        for own in (tensor.element_bytes,)
    )
    return TileGraph(tensor_graph(graph), cut.counts, cut.through, held, cut.sums)


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
    def _work(self) -> WorkOnCores:
        """One tile of every tile operator."""
        cores = max(self.accelerator.num_tc, self.accelerator.num_vc)
        return work_on_cores(self._tiles.graph, self.accelerator, cores)

    def _busy_s(self, resource: str) -> FloatArray:
        """Time of all tiles of every tile operator on a resource, no less than of the whole one."""
        operators, tiles = tile_graph(self.graph).row_columns
        one_tile_s = getattr(self._work.seconds, resource)[0]
        if resource == "vc_s":
            one_tile_s = one_tile_s / self.lane_rate
        whole_s = getattr(self.all_cores, resource)[operators]
        return np.asarray(np.maximum(one_tile_s * tiles, whole_s))

    def prices(self) -> TilePrices:
        """Return what the scheduler takes of tile operators."""
        _, tiles = tile_graph(self.graph).row_columns
        sets = working_sets(self._tiles.graph, self.accelerator)
        rate = self.accelerator.sustained_hbm_bytes_per_s
        moved = self._work.seconds.hbm_s[0][:, np.newaxis] * rate + sets.extra_bytes
        other_s = np.maximum(self._busy_s("tc_s"), self._busy_s("glb_s"))
        lanes_s = self._busy_s("vc_s")[:, np.newaxis] * sets.lane_factor
        row = tile_graph(self.graph).access_row
        saved = saved_by_accesses(
            row, self._tiles.access_bytes, self._tiles.access_operand_bytes, sets
        )
        return TilePrices(
            working_bytes=sets.working_bytes,
            hbm_bytes=moved * tiles[:, np.newaxis],
            other_s=np.maximum(other_s[:, np.newaxis], lanes_s),
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

        What the HBM moves is left out, with its energy.
        """
        row_of = tile_graph(self.graph).row_of
        whole = [one for group in groups for one in group.operators]
        cut = [row_of[one, group.tiles] for group in groups for one in group.operators]
        mode = self.all_cores
        seconds = {name: getattr(mode, name).copy() for name in ("tc_s", "vc_s", "glb_s")}
        for name, values in seconds.items():
            values[whole] = self._busy_s(name)[cut]
        # What the HBM moves takes energy too, which is not of the tiles.
        none = np.zeros(len(mode.hbm_s))
        energy_j = with_hbm_bytes(mode, none, self.accelerator).energy_by_level_j
        one_tile = with_energy(self._tiles.graph, self.accelerator, self._work)
        none = np.zeros(len(one_tile.hbm_s))
        one_tile_j = with_hbm_bytes(one_tile, none, self.accelerator).energy_by_level_j
        _, tiles = tile_graph(self.graph).row_columns
        tiles_j = one_tile_j[cut] * tiles[cut][:, np.newaxis]
        energy_j[whole] = np.maximum(energy_j[whole], tiles_j)
        return mode.with_seconds(
            **seconds, hbm_s=np.zeros(len(mode.hbm_s)), energy_by_level_j=energy_j
        )


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

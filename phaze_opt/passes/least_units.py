"""Least seconds of operators on units of cores: all combinations of cores with one peak rate.

Rooflines know nothing of a chip but its peak rates. How well a product fits the arrays, and how
much its tiles load the global buffer, depends on the tensor cores alone, and how well vectors fill
the lanes on the vector cores alone. So a few thousand combinations of cores, each estimated once
beside ideal other cores and memories, bound every operator on millions of chips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.fitting_tiles import where_tiles_fit
from phaze_opt.estimator.least_seconds import least_seconds_beside
from phaze_opt.workload.graph import OperatorGraph

_KEPT = 64
"""Bounds of graphs that are kept."""


@dataclass(frozen=True, eq=False)
class Units:
    """Units of cores of one type.

    Attributes
    ----------
    chips
        One per combination, unit by unit; all else on them is ideal.
    first : (units,)
        The first of every unit.
    """

    chips: Chips
    first: IntArray

    def some(self, combinations: IntArray) -> Chips:
        """Return the chips of some combinations."""
        return Chips([self.chips[index] for index in combinations.tolist()])

    def least(self, seconds: FloatArray) -> FloatArray:
        """Return the least of every unit: (units, operators) of (combinations, operators)."""
        return np.minimum.reduceat(seconds, self.first, axis=0)


@dataclass(frozen=True, eq=False)
class UnitsOfChips:
    """The units of cores that boxes of chips are made of.

    Attributes
    ----------
    tensor_cores, vector_cores
        All units.
    of_tensor_cores, of_vector_cores : (chips,)
        Those of each box.
    """

    tensor_cores: Units
    vector_cores: Units
    of_tensor_cores: IntArray
    of_vector_cores: IntArray

    def some(self, which: IntArray) -> UnitsOfChips:
        """Return those of some boxes."""
        return replace(
            self,
            of_tensor_cores=self.of_tensor_cores[which],
            of_vector_cores=self.of_vector_cores[which],
        )


class _Seconds(NamedTuple):
    """Least seconds of cores, each of shape (units, operators).

    Attributes
    ----------
    fastest_s
        In the faster mode; of tensor cores with the global buffer, whose tiles follow from them.
    cores_s
        For which an operator takes all cores.
    all_cores_s
        On all cores.
    glb_s
        For which an operator takes all of the global buffer.
    """

    fastest_s: FloatArray
    cores_s: FloatArray
    all_cores_s: FloatArray
    glb_s: FloatArray


class LeastOfUnits(NamedTuple):
    """Least seconds of the operators of a graph on some boxes of chips: (chips, operators) each.

    Attributes
    ----------
    fastest_s
        In the faster mode, without the constant per operator.
    all_cores_s
        On all cores, without that constant.
    tc_s, vc_s, glb_s
        For which an operator takes all tensor cores, all vector cores, all of the global buffer.
    """

    fastest_s: FloatArray
    all_cores_s: FloatArray
    tc_s: FloatArray
    vc_s: FloatArray
    glb_s: FloatArray


def least_of_units(graph: OperatorGraph, units: UnitsOfChips, lane_rate: float) -> LeastOfUnits:
    """Bound every operator from below on boxes of chips, on whatever network.

    Parameters
    ----------
    graph
        As for `phaze_opt.estimator.estimate.estimate_table`.
    units
        Of the boxes.
    lane_rate
        As in `phaze_opt.passes.least_seconds.least_layers`.

    Returns
    -------
    LeastOfUnits
        Infinite where no tile of a product fits any combination.
    """
    arrays = _on_tensor_cores(graph, units.tensor_cores)
    lanes = _on_vector_cores(graph, units.vector_cores)
    of_arrays, of_lanes = units.of_tensor_cores, units.of_vector_cores
    return LeastOfUnits(
        np.maximum(arrays.fastest_s[of_arrays], lanes.fastest_s[of_lanes] / lane_rate),
        np.maximum(arrays.all_cores_s[of_arrays], lanes.all_cores_s[of_lanes] / lane_rate),
        arrays.cores_s[of_arrays],
        lanes.cores_s[of_lanes] / lane_rate,
        arrays.glb_s[of_arrays],
    )


@lru_cache(maxsize=_KEPT)
def _on_tensor_cores(graph: OperatorGraph, units: Units) -> _Seconds:
    """Return the least seconds of arrays and of the global buffer; infinite where no tile fits."""

    def seconds(combinations: IntArray) -> FloatArray:
        some = units.some(combinations)
        parts = list(least_seconds_beside(graph, some, np.zeros(len(graph.operators))))
        one_core_s = [np.maximum(part.one_core.tc_s, part.one_core.glb_s) for part in parts]
        all_cores_s = [np.maximum(part.all_cores.tc_s, part.all_cores.glb_s) for part in parts]
        glb_s = [part.one_core.glb_s for part in parts]
        return np.stack([np.concatenate(each).T for each in (one_core_s, all_cores_s, glb_s)])

    unfit = np.full((3, len(graph.operators), 1), np.inf)
    every = where_tiles_fit(seconds, np.arange(len(units.chips)), unfit)
    one_core_s, all_cores_s, glb_s = every.transpose(0, 2, 1)
    return _Seconds(
        units.least(np.minimum(one_core_s, all_cores_s)),
        units.least(np.minimum(one_core_s / units.chips.column("num_tc"), all_cores_s)),
        units.least(all_cores_s),
        units.least(np.minimum(glb_s, all_cores_s)),
    )


@lru_cache(maxsize=_KEPT)
def _on_vector_cores(graph: OperatorGraph, units: Units) -> _Seconds:
    """Return the least seconds of lanes."""
    parts = list(least_seconds_beside(graph, units.chips, np.zeros(len(graph.operators))))
    one_core_s = np.concatenate([part.one_core.vc_s for part in parts])
    all_cores_s = np.concatenate([part.all_cores.vc_s for part in parts])
    return _Seconds(
        units.least(np.minimum(one_core_s, all_cores_s)),
        units.least(np.minimum(one_core_s / units.chips.column("num_vc"), all_cores_s)),
        units.least(all_cores_s),
        np.zeros((len(units.first), one_core_s.shape[1])),
    )

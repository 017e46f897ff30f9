"""The cores that the boxes of a space are made of, to bound boxes by more than their peak rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.bounds.axis_groups import TENSOR_CORES, VECTOR_CORES
from phaze_opt.bounds.box_table import BoxTable
from phaze_opt.bounds.space_chips import SpaceChips
from phaze_opt.estimator.chips import Chips
from phaze_opt.passes.least_units import Units, UnitsOfChips
from phaze_opt.spec.axis_names import CHIP_FIELDS

_MEMORIES = ("glb_bytes", "hbm_bytes", "hbm_bytes_per_s")

_IDEAL: Mapping[str, int | float] = {
    "num_tc": 1,
    "num_vc": 1,
    "pe_vc": 2**40,
    "l2_tc_bytes": 2**45,
    "l2_vc_bytes": 2**45,
    "glb_bytes": 2**45,
    "hbm_bytes_per_s": 1e20,
}
"""Fields of a chip on which nothing but some cores takes time. Tiles of products follow from the
bandwidth of the global buffer too, which is the same on all chips."""


@dataclass(frozen=True, eq=False)
class CoreUnits:
    """All combinations of cores in a space, by their peak rates.

    Attributes
    ----------
    table
        The boxes of the space.
    tensor_cores, vector_cores
        Combinations of the same peak rates.
    tensor_rates, vector_rates : (units,)
        These rates: processing elements, and lanes.
    """

    table: BoxTable
    tensor_cores: Units
    vector_cores: Units
    tensor_rates: FloatArray
    vector_rates: FloatArray

    def of(self, boxes: IntArray) -> UnitsOfChips:
        """Return the units of some boxes."""
        rates = self.table.rates
        return UnitsOfChips(
            self.tensor_cores,
            self.vector_cores,
            np.searchsorted(self.tensor_rates, rates["processing_elements"][boxes]),
            np.searchsorted(self.vector_rates, rates["lanes"][boxes]),
        )


def core_units(chips: SpaceChips) -> CoreUnits | None:
    """Return the cores of a space; ``None`` if tiles of products follow from more than these."""
    known = {*TENSOR_CORES, *VECTOR_CORES, *_MEMORIES}
    varying = {name for name in chips.study.spec.space.varying_fields if name in CHIP_FIELDS}
    if not varying <= known or len(chips) == 0:
        return None
    tensor_cores, tensor_rates = _units(chips, TENSOR_CORES, ("num_tc", "pe_x", "pe_y"))
    vector_cores, vector_rates = _units(chips, VECTOR_CORES, ("num_vc", "pe_vc"))
    return CoreUnits(chips.table, tensor_cores, vector_cores, tensor_rates, vector_rates)


def _units(
    chips: SpaceChips, names: Sequence[str], factors: Sequence[str]
) -> tuple[Units, FloatArray]:
    """Return units of cores, by the product of some fields, and these products."""
    for own in chips.table.groups:
        if names[0] in own.group.columns:
            columns = np.stack([own.group.columns[name] for name in names])
    rates = np.prod([columns[names.index(name)] for name in factors], axis=0)
    distinct = np.unique(np.vstack([rates, columns]), axis=1)
    base = chips.architecture(0)
    if names is TENSOR_CORES:
        # A unit for exponentials would take as many cycles as there are lanes.
        calibration = replace(base.calibration, exponentials_per_cycle=None)
        base = base.with_checked({"calibration": calibration})
    cores = [
        base.with_checked({**_IDEAL, **dict(zip(names, map(int, values), strict=True))})
        for values in distinct[1:].T.tolist()
    ]
    in_order, first = np.unique(distinct[0], return_index=True)
    return Units(Chips(cores), first.astype(np.int64)), in_order

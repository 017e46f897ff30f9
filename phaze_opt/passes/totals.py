"""What the operators of a pass come to in the modes that its schedule chose, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import compiled_as, lazily_compiled
from phaze_opt.estimator.estimate import GraphEstimate, ModeEstimate


@compiled_as("i8[::1], f8[::1], f8[:, ::1]")
class BoundOperators(NamedTuple):
    """What binds some operators in one mode, on one chip or on many.

    Attributes
    ----------
    resource
        Place in `phaze_opt.estimator.estimate.RESOURCES`.
    latency_s, energy_by_level_j
        As in `ModeEstimate`.
    """

    resource: IntArray
    latency_s: FloatArray
    energy_by_level_j: FloatArray

    @classmethod
    def of(cls, mode: ModeEstimate) -> BoundOperators:
        """Return what binds the operators of an estimate."""
        return cls(mode.binding_index(), mode.latency_s, mode.energy_by_level_j)

    def rows(self, which: tuple[int, slice]) -> BoundOperators:
        """Return some operators on one chip."""
        resource, latency_s, energy_j = self
        return BoundOperators(resource[which], latency_s[which], energy_j[which])


def bound_in_modes(estimate: GraphEstimate) -> tuple[BoundOperators, BoundOperators]:
    """Return what binds the operators on one core, and on all cores."""
    return BoundOperators.of(estimate.one_core), BoundOperators.of(estimate.all_cores)


@lazily_compiled("Tuple((i8[::1], f8[::1], f8[::1]))(b1[::1], i8, BoundOperators, BoundOperators)")
def totals_in_modes(
    on_all: BoolArray, resources: int, one_core: BoundOperators, all_cores: BoundOperators
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Add up operators by the resource that binds them, and their energy by level.

    Parameters
    ----------
    on_all : (operators,)
        Whether each runs on all cores.
    resources
        How many there are.
    one_core, all_cores
        The operators in both modes.

    Returns
    -------
    operators, seconds : (resources,)
        That each binds.
    energy_j : (levels,)
        Of all operators.
    """
    operators = np.zeros(resources, dtype=np.int64)
    seconds = np.zeros(resources)
    energy_j = np.zeros(one_core.energy_by_level_j.shape[1])
    for i in range(len(on_all)):
        mode = all_cores if on_all[i] else one_core
        operators[mode.resource[i]] += 1
        seconds[mode.resource[i]] += mode.latency_s[i]
        for level in range(len(energy_j)):
            energy_j[level] += mode.energy_by_level_j[i, level]
    return operators, seconds, energy_j

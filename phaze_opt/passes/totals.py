"""What the operators of a pass come to in the modes that its schedule chose, compiled."""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled


@lazily_compiled(
    "Tuple((i8[::1], f8[::1], f8[::1]))(b1[::1], i8, i8[::1], f8[::1], f8[:, ::1], i8[::1],"
    " f8[::1], f8[:, ::1])"
)
def totals_in_modes(
    on_all: BoolArray,
    resources: int,
    resource_one: IntArray,
    latency_one_s: FloatArray,
    energy_one_j: FloatArray,
    resource_all: IntArray,
    latency_all_s: FloatArray,
    energy_all_j: FloatArray,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Add up operators by the resource that binds them, and their energy by level.

    Parameters
    ----------
    on_all : (operators,)
        Whether each runs on all cores.
    resources
        How many there are.
    resource_one, latency_one_s, energy_one_j
        On one core: place of the resource that binds, seconds, and joules ``(operators, levels)``.
    resource_all, latency_all_s, energy_all_j
        The same on all cores.

    Returns
    -------
    operators, seconds : (resources,)
        That each binds.
    energy_j : (levels,)
        Of all operators.
    """
    operators = np.zeros(resources, dtype=np.int64)
    seconds = np.zeros(resources)
    energy_j = np.zeros(energy_one_j.shape[1])
    for i in range(len(on_all)):
        resource, latency_s = resource_one[i], latency_one_s[i]
        energy = energy_one_j[i]
        if on_all[i]:
            resource, latency_s = resource_all[i], latency_all_s[i]
            energy = energy_all_j[i]
        operators[resource] += 1
        seconds[resource] += latency_s
        for level in range(len(energy_j)):
            energy_j[level] += energy[level]
    return operators, seconds, energy_j

"""Loops over all runs of layers that exchange something once per batch.

As in `phaze_opt.placement.runs`, results have the shape ``(layers, layers + 1)``: ``[i, j]`` is of
the layers ``i … j − 1``, and 0 where there are none. Every number is what the arrays of
`phaze_opt.placement.costs.collective_table_s` and `phaze_opt.placement.overlap` give, to the last
bit; several hundred candidates ask for them, and one loop each is several times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, lazily_compiled
from phaze_opt.network.term import Term
from phaze_opt.placement.overlap import charged_s


def lines_of(terms: Sequence[Term]) -> FloatArray:
    """Return latency, seconds per byte and per root of bytes of some algorithms, a row each."""
    return np.array(
        [(term.latency_s, term.s_per_byte, term.s_per_sqrt_byte) for term in terms],
        dtype=np.float64,
    ).reshape(-1, 3)


def padded(groups: Sequence[FloatArray]) -> FloatArray:
    """Stack the `lines_of` many groups, with endless ones where there are fewer."""
    most = max((len(lines) for lines in groups), default=0)
    stacked = np.zeros((len(groups), most, 3))
    stacked[:, :, 0] = np.inf
    for index, lines in enumerate(groups):
        stacked[index, : len(lines)] = lines
    return stacked


@callee("float64(float64[:,::1], float64)")
def cheapest_line_s(lines: FloatArray, size_bytes: float) -> float:
    """Time of the cheapest algorithm; nothing to send takes no time."""
    if size_bytes <= 0.0 or lines.shape[0] == 0:
        return 0.0
    least_s = np.inf
    for k in range(lines.shape[0]):
        time_s = lines[k, 0] + size_bytes * lines[k, 1]
        if lines[k, 2] != 0.0:
            time_s = time_s + np.sqrt(size_bytes) * lines[k, 2]
        least_s = min(least_s, time_s)
    return least_s


@lazily_compiled("float64[:,::1](float64[:,:,::1], float64[::1])")
def cheapest_lines_s(groups: FloatArray, sizes: FloatArray) -> FloatArray:
    """Return the same of some groups, see `padded`, and some sizes: (groups, sizes)."""
    times_s = np.empty((groups.shape[0], len(sizes)))
    for group in range(groups.shape[0]):
        for index in range(len(sizes)):
            times_s[group, index] = cheapest_line_s(groups[group], sizes[index])
    return times_s


@lazily_compiled(
    "UniTuple(float64[:,::1], 2)(float64[:,::1], float64[:,::1], int64[::1], float64[:,::1],"
    " float64[::1], float64[::1], int64[::1], float64[:,::1], float64[:,::1], float64, float64,"
    " boolean)"
)
def exchanges_per_batch(
    lines: FloatArray,
    routed_lines: FloatArray,
    ends: IntArray,
    own_bytes: FloatArray,
    routed_bytes: FloatArray,
    cover_s: FloatArray,
    places: IntArray,
    parameters: FloatArray,
    routed: FloatArray,
    bytes_each: float,
    core_share: float,
    overlaps: bool,
) -> tuple[FloatArray, FloatArray]:
    """Exchange the gradients of all runs of layers once per batch.

    Layer by layer beside the backward, as `phaze_opt.placement.overlap.backward_queue_s` without
    gathers, or one after the other; or the whole run at once, where that takes no longer.

    Parameters
    ----------
    lines, routed_lines : (algorithms, 3)
        See `lines_of`; of routed experts that are shared out, none where they are not.
    ends : (parts,)
        First layer after each part of the first layers of runs.
    own_bytes : (parts, layers)
        What each layer sends in a run that begins in the part, its routed experts aside.
    routed_bytes : (layers,)
        What the routed experts of each layer send.
    cover_s : (layers,)
        Seconds of each layer's backward in which the queue may run.
    places : (layers + 1,)
        Row and column of runs that begin and end there, −1 where none does.
    parameters, routed : (places, places + 1)
        Of whole runs, routed experts aside, and of these.
    bytes_each
        Gradient of a parameter.
    core_share
        What hidden communication takes from the compute, per second.
    overlaps
        Whether anything runs beside the compute.

    Returns
    -------
    exposed_s, total_s
    """
    layers = len(cover_s)
    exposed_s = np.zeros(parameters.shape)
    total_s = np.zeros(parameters.shape)
    sent_s = np.zeros(layers)
    begin = 0
    for part in range(len(ends)):
        for layer in range(layers):
            sent_s[layer] = cheapest_line_s(lines, own_bytes[part, layer])
            sent_s[layer] += cheapest_line_s(routed_lines, routed_bytes[layer])
        for j in range(begin + 1, layers + 1):
            end = places[j]
            if end < 0:
                continue
            covered, reduced, reductions = 0.0, 0.0, 0.0
            for first in range(j - 1, begin - 1, -1):
                reductions += sent_s[first]
                covered += cover_s[first]
                reduced = max(reduced, covered) + sent_s[first]
                place = places[first]
                if first < ends[part] and place >= 0:
                    left_s = max(reduced, reductions) - covered
                    all_s = reductions
                    alone_s = charged_s(left_s, reductions - left_s, core_share)
                    if not overlaps:
                        alone_s = all_s
                    whole_s = cheapest_line_s(lines, parameters[place, end] * bytes_each)
                    whole_s += cheapest_line_s(routed_lines, routed[place, end] * bytes_each)
                    if whole_s <= alone_s:
                        all_s = alone_s = whole_s
                    exposed_s[place, end], total_s[place, end] = alone_s, all_s
        begin = ends[part]
    return exposed_s, total_s

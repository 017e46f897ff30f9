"""Best split of a chain of layers into pipeline stages, by dynamic programming.

The time of a batch in closed form, for stages 1 … p with loads L, backward work b and tails
(gradient synchronisation and optimizer step):

    T = h + (m − 1) · max L + Σ L + max over s of (tail_s − Σ_{j<s} b_j)

since a stage ends its last backward when the stages before it still have theirs to do; ``h`` is
what the first stage waits for before its first forward (weights that come in). The dynamic
program goes from the last stage to the first, because the memory of a stage depends on its place
from the end. Partial answers that another one beats in all three terms are dropped, and so are
those that cannot beat what is known; what remains is exact.

The idea of a maximal-load program over contiguous stages is from M. Tarnawski et al., "Efficient
algorithms for device placement of DNN graph operators" (NeurIPS 2020).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import compiled_as, inlined, lazily_compiled
from phaze_opt.placement.chain_bounds import TIE, reach_of
from phaze_opt.placement.closed_form import pipelined_s

_MARGIN = 1e-9
"""By how much a label may be above a time that is reached: far more than ties and rounding, so that
what is left out changes nothing."""


@compiled_as("float64[:,::1], float64[:,::1], float64[:,::1], int64[:,::1], float64[::1]")
class ChainWork(NamedTuple):
    """What every possible stage does and holds, see `phaze_opt.placement.costs`.

    Attributes
    ----------
    load_s, backward_s, tail_s, in_flight_limit : (layers, layers + 1)
        The terms of the module's formula, and the most microbatches in flight.
    head_s : (layers + 1,)
        What the first stage waits for first, by its number of layers.
    """

    load_s: FloatArray
    backward_s: FloatArray
    tail_s: FloatArray
    in_flight_limit: IntArray
    head_s: FloatArray


Prefixes = tuple[FloatArray, FloatArray, FloatArray]
"""See `_prefixes`."""


@lazily_compiled("UniTuple(float64[:,::1], 3)(ChainWork, int64[::1])")
def _prefixes(chain: ChainWork, held: IntArray) -> Prefixes:
    """Bound what the first ``q`` stages add, up to each layer: ``[q, layer]``.

    Least largest load, least sum of loads, largest sum of backward work. A stage that does not fit
    fits with no more layers either.
    """
    load_s, backward_s, in_flight_limit = chain.load_s, chain.backward_s, chain.in_flight_limit
    layers, stages = load_s.shape[0], len(held) - 1
    most = np.full((stages + 1, layers + 1), np.inf)
    least_sum = np.full((stages + 1, layers + 1), np.inf)
    backward = np.full((stages + 1, layers + 1), -np.inf)
    most[0, 0] = 0.0
    least_sum[0, 0] = 0.0
    backward[0, 0] = 0.0
    for q in range(1, stages + 1):
        for j in range(q, layers - (stages - q) + 1):
            for i in range(j - 1, q - 2, -1):
                if in_flight_limit[i, j] < held[stages - q + 1]:
                    break
                if most[q - 1, i] == np.inf:
                    continue
                most[q, j] = min(most[q, j], max(most[q - 1, i], load_s[i, j]))
                least_sum[q, j] = min(least_sum[q, j], least_sum[q - 1, i] + load_s[i, j])
                backward[q, j] = max(backward[q, j], backward[q - 1, i] + backward_s[i, j])
    return most, least_sum, backward


@lazily_compiled("float64(ChainWork, int64[::1], int64, float64[:,::1])")
def _reached_s(chain: ChainWork, held: IntArray, microbatches: int, most: FloatArray) -> float:
    """Return the closed form of a split whose largest load is the least; see `best_split`.

    Parameters
    ----------
    most : (stages + 1, layers + 1)
        The first table of `_prefixes`, finite at its end.
    """
    load_s, backward_s, tail_s, in_flight_limit, head_s = chain
    stages, j = most.shape[0] - 1, load_s.shape[0]
    largest_s = total_s = 0.0
    # From the last stage to the first; the backwards of stages before one shorten its tail.
    left_s = -np.inf
    for q in range(stages, 0, -1):
        for i in range(q - 1, j):
            if in_flight_limit[i, j] < held[stages - q + 1]:
                continue
            if max(most[q - 1, i], load_s[i, j]) <= most[q, j]:
                break
        largest_s, total_s = max(largest_s, load_s[i, j]), total_s + load_s[i, j]
        left_s = max(tail_s[i, j], left_s - backward_s[i, j])
        if q == 1:
            total_s += head_s[j]
        j = i
    return pipelined_s(microbatches, largest_s, total_s) + left_s


@inlined
def _keep(
    labels: FloatArray,
    origin: IntArray,
    first: int,
    used: int,
    largest: float,
    total: float,
    tail: float,
) -> int:
    """Add a label to those of its state (``first`` … ``used`` − 1) unless one beats it.

    Drops those that it beats. Returns the new ``used``, or −1 if the label was not kept; the
    kept one is the last, its origin still to be set.
    """
    for other in range(first, used):
        if (
            labels[other, 0] <= largest * (1.0 + TIE)
            and labels[other, 1] <= total * (1.0 + TIE)
            and labels[other, 2] <= tail + total * TIE
        ):
            return -1
    kept = first
    for other in range(first, used):
        if labels[other, 0] < largest or labels[other, 1] < total or labels[other, 2] < tail:
            for column in range(3):
                labels[kept, column] = labels[other, column]
            origin[kept, 0] = origin[other, 0]
            origin[kept, 1] = origin[other, 1]
            kept += 1
    labels[kept, 0] = largest
    labels[kept, 1] = total
    labels[kept, 2] = tail
    return kept + 1


@lazily_compiled(
    "int64(ChainWork, int64[::1], int64, float64, UniTuple(float64[:,::1], 3), float64[:,::1],"
    " int64[:,::1], int64[:,::1])"
)
def _label(
    chain: ChainWork,
    held: IntArray,
    microbatches: int,
    known_s: float,
    prefixes: Prefixes,
    labels: FloatArray,
    origin: IntArray,
    first: IntArray,
) -> int:
    """Fill the labels of all states, last stage first; see `best_split`.

    Labels are rows (largest load, sum of loads, tail term) with their origin (first layer of the
    next stage, label there). Those of the state (place from the end, first layer) lie between
    ``first[place, 2 · layer]`` and ``first[place, 2 · layer + 1]``. Returns the number of labels,
    or −1 if there is no room for them.
    """
    load_s, backward_s, tail_s, in_flight_limit, head_s = chain
    most, least_sum, most_backward = prefixes
    layers, stages = load_s.shape[0], len(held) - 1
    labels[0, 0] = 0.0
    labels[0, 1] = 0.0
    labels[0, 2] = -np.inf
    first[0, 2 * layers + 1] = 1
    used = 1
    reach = np.full(layers, layers)
    for place in range(1, stages + 1):
        before = stages - place
        for i in range(layers - place, before - 1, -1):
            begin = used
            reach[i] = reach_of(in_flight_limit, held[place], i, reach[i])
            for j in range(i + 1, min(layers - place + 1, reach[i]) + 1):
                if in_flight_limit[i, j] < held[place] or most[before, i] == np.inf:
                    continue
                for source in range(first[place - 1, 2 * j], first[place - 1, 2 * j + 1]):
                    largest = max(load_s[i, j], labels[source, 0])
                    total = load_s[i, j] + labels[source, 1]
                    if place == stages:
                        total += head_s[j]
                    tail = max(tail_s[i, j], labels[source, 2] - backward_s[i, j])
                    most_s, sum_s = max(largest, most[before, i]), total + least_sum[before, i]
                    bound = pipelined_s(microbatches, most_s, sum_s)
                    bound += max(tail - most_backward[before, i], tail_s[0, 1])
                    if bound > known_s * (1.0 + TIE):
                        continue
                    if used == len(labels):
                        return -1
                    kept = _keep(labels, origin, begin, used, largest, total, tail)
                    if kept >= 0:
                        used = kept
                        origin[used - 1, 0] = j
                        origin[used - 1, 1] = source
            first[place, 2 * i] = begin
            first[place, 2 * i + 1] = used
    return used


@inlined
def _time_s(label: FloatArray, microbatches: int) -> float:
    """Return the time of a batch that a label of the first stage stands for."""
    time_s: float = pipelined_s(microbatches, label[0], label[1]) + label[2]
    return time_s


@lazily_compiled("Tuple((float64, int64[::1]))(ChainWork, int64[::1], int64, float64)")
def best_split(
    chain: ChainWork, held: IntArray, microbatches: int, known_s: float
) -> tuple[float, IntArray]:
    """Return the least closed-form time with exactly so many stages, and their first layers.

    Parameters
    ----------
    chain
        All possible stages.
    held : (stages + 1,)
        Microbatches in flight of a stage by its place from the end of the pipeline.
    microbatches
        Per batch.
    known_s
        A time already reached; answers above it need not be found.

    Returns
    -------
    tuple
        Seconds (infinite if there is no answer up to ``known_s``) and the index of the first layer
        of every stage.
    """
    layers, stages = chain.load_s.shape[0], len(held) - 1
    starts = np.zeros(stages, np.int64)
    prefixes = _prefixes(chain, held)
    if prefixes[0][stages, layers] == np.inf:
        return np.inf, starts
    reached_s = _reached_s(chain, held, microbatches, prefixes[0])
    known_s = min(known_s, reached_s * (1.0 + _MARGIN))
    first = np.zeros((stages + 1, 2 * layers + 2), np.int64)
    room, used = 4096, -1
    while used < 0:
        labels, origin = np.empty((room, 3)), np.empty((room, 2), np.int64)
        used = _label(chain, held, microbatches, known_s, prefixes, labels, origin, first)
        room *= 4
    best_s, label = np.inf, first[stages, 0]
    for answer in labels[label : first[stages, 1]]:
        best_s = min(best_s, _time_s(answer, microbatches))
    if best_s == np.inf:
        return best_s, starts
    while _time_s(labels[label], microbatches) > best_s * (1.0 + TIE):
        label += 1
    for stage in range(1, stages):
        starts[stage], label = origin[label, 0], origin[label, 1]
    return best_s, starts

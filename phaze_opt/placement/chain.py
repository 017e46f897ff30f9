"""Best split of a chain of layers into pipeline stages, by dynamic programming.

The time of a batch in closed form, for stages 1 … p with loads L, backward work b and tails
(gradient synchronisation and optimizer step):

    T = (m − 1) · max L + Σ L + max over s of (tail_s − Σ_{j<s} b_j)

since a stage ends its last backward when the stages before it still have theirs to do. The dynamic
program goes from the last stage to the first, because the memory of a stage depends on its place
from the end. Partial answers that another one beats in all three terms are dropped, and so are
those that cannot beat what is known; what remains is exact.

The idea of a maximal-load program over contiguous stages is from M. Tarnawski et al., "Efficient
algorithms for device placement of DNN graph operators" (NeurIPS 2020).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze_opt.placement.compiled import compiled

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIE = 1e-12
"""Relative difference below which two times count as equal."""


@compiled("Tuple((float64[::1], float64[::1]))(float64[:,::1], int64[:,::1], int64, int64)")
def least_loads(
    load_s: Floats, in_flight_limit: Integers, microbatches: int, most_stages: int
) -> tuple[Floats, Floats]:
    """Return the least largest load and the least sum of loads for every number of stages.

    Parameters
    ----------
    load_s, in_flight_limit : (layers, layers + 1)
        Of every stage, see `phaze_opt.placement.costs`.
    microbatches
        Per batch; limits what a stage holds in flight.
    most_stages
        Largest number of stages asked for.

    Returns
    -------
    tuple of (most_stages + 1,)
        Infinite where no split fits the memory.
    """
    layers = load_s.shape[0]
    most = np.full((most_stages + 1, layers + 1), np.inf)
    least_sum = np.full((most_stages + 1, layers + 1), np.inf)
    most[0, layers] = 0.0
    least_sum[0, layers] = 0.0
    for place in range(1, most_stages + 1):
        held = min(place, microbatches)
        for i in range(layers - place, -1, -1):
            for j in range(i + 1, layers - place + 2):
                if in_flight_limit[i, j] < held:
                    continue
                load = load_s[i, j]
                most[place, i] = min(most[place, i], max(load, most[place - 1, j]))
                least_sum[place, i] = min(least_sum[place, i], load + least_sum[place - 1, j])
    return most[:, 0].copy(), least_sum[:, 0].copy()


@compiled(
    "Tuple((float64[:,::1], float64[:,::1], float64[:,::1]))"
    "(float64[:,::1], float64[:,::1], int64[:,::1], int64, int64)"
)
def _prefixes(
    load_s: Floats, backward_s: Floats, in_flight_limit: Integers, microbatches: int, stages: int
) -> tuple[Floats, Floats, Floats]:
    """Bound what the first ``q`` stages of ``stages`` add, up to each layer: ``[q, layer]``.

    Least largest load, least sum of loads, largest sum of backward work.
    """
    layers = load_s.shape[0]
    most = np.full((stages + 1, layers + 1), np.inf)
    least_sum = np.full((stages + 1, layers + 1), np.inf)
    backward = np.full((stages + 1, layers + 1), -np.inf)
    most[0, 0] = 0.0
    least_sum[0, 0] = 0.0
    backward[0, 0] = 0.0
    for q in range(1, stages + 1):
        held = min(stages - q + 1, microbatches)
        for j in range(q, layers - (stages - q) + 1):
            for i in range(q - 1, j):
                if in_flight_limit[i, j] < held or most[q - 1, i] == np.inf:
                    continue
                most[q, j] = min(most[q, j], max(most[q - 1, i], load_s[i, j]))
                least_sum[q, j] = min(least_sum[q, j], least_sum[q - 1, i] + load_s[i, j])
                backward[q, j] = max(backward[q, j], backward[q - 1, i] + backward_s[i, j])
    return most, least_sum, backward


@compiled(
    "Tuple((float64, int64[::1]))(float64[:,::1], float64[:,::1], float64[:,::1], int64[:,::1],"
    " int64, int64, float64)"
)
def best_split(
    load_s: Floats,
    backward_s: Floats,
    tail_s: Floats,
    in_flight_limit: Integers,
    microbatches: int,
    stages: int,
    known_s: float,
) -> tuple[float, Integers]:
    """Return the least closed-form time with exactly so many stages, and their first layers.

    Parameters
    ----------
    load_s, backward_s, tail_s, in_flight_limit : (layers, layers + 1)
        Of every stage, see `phaze_opt.placement.costs` and the module's formula.
    microbatches, stages
        Per batch; of the pipeline.
    known_s
        A time already reached; answers above it need not be found.

    Returns
    -------
    tuple
        Seconds (infinite if there is no answer up to ``known_s``) and the index of the first layer
        of every stage.
    """
    layers = load_s.shape[0]
    repeats = microbatches - 1
    most, least_sum, most_backward = _prefixes(
        load_s, backward_s, in_flight_limit, microbatches, stages
    )
    # Labels of all states in a growing list; those of state (stage place, first layer) are
    # first[place, layer] … last[place, layer] − 1. Columns: largest load, sum, tail term.
    labels = np.zeros((1024, 3))
    origin = np.zeros((1024, 2), dtype=np.int64)
    first = np.zeros((stages + 1, layers + 1), dtype=np.int64)
    last = np.zeros((stages + 1, layers + 1), dtype=np.int64)
    last[0, layers] = 1
    labels[0, 2] = -np.inf
    used = 1
    for place in range(1, stages + 1):
        held = min(place, microbatches)
        before = stages - place
        for i in range(layers - place, before - 1, -1):
            first[place, i] = used
            last[place, i] = used
            if most[before, i] == np.inf:
                continue
            for j in range(i + 1, layers - place + 2):
                if in_flight_limit[i, j] < held:
                    continue
                for source in range(first[place - 1, j], last[place - 1, j]):
                    largest = max(load_s[i, j], labels[source, 0])
                    total = load_s[i, j] + labels[source, 1]
                    tail = max(tail_s[i, j], labels[source, 2] - backward_s[i, j])
                    bound = (
                        repeats * max(largest, most[before, i])
                        + total
                        + least_sum[before, i]
                        + max(tail - most_backward[before, i], tail_s[0, 1])
                    )
                    if bound > known_s * (1.0 + TIE):
                        continue
                    beaten = False
                    for other in range(first[place, i], used):
                        if (
                            labels[other, 0] <= largest * (1.0 + TIE)
                            and labels[other, 1] <= total * (1.0 + TIE)
                            and labels[other, 2] <= tail + total * TIE
                        ):
                            beaten = True
                            break
                    if beaten:
                        continue
                    kept = first[place, i]
                    for other in range(first[place, i], used):
                        if (
                            labels[other, 0] < largest
                            or labels[other, 1] < total
                            or labels[other, 2] < tail
                        ):
                            labels[kept] = labels[other]
                            origin[kept] = origin[other]
                            kept += 1
                    if kept == len(labels):
                        more = np.zeros((2 * kept, 3))
                        more[:kept] = labels
                        labels = more
                        more_origin = np.zeros((2 * kept, 2), dtype=np.int64)
                        more_origin[:kept] = origin
                        origin = more_origin
                    labels[kept, 0] = largest
                    labels[kept, 1] = total
                    labels[kept, 2] = tail
                    origin[kept, 0] = j
                    origin[kept, 1] = source
                    used = kept + 1
            last[place, i] = used
    best_s = np.inf
    best = -1
    for label in range(first[stages, 0], last[stages, 0]):
        time_s = repeats * labels[label, 0] + labels[label, 1] + labels[label, 2]
        if best < 0 or time_s < best_s * (1.0 - TIE):
            best_s = time_s
            best = label
    starts = np.zeros(stages, dtype=np.int64)
    for stage in range(1, stages):
        starts[stage] = origin[best, 0] if best >= 0 else 0
        best = origin[best, 1] if best >= 0 else best
    return best_s, starts

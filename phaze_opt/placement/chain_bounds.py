"""Bounds of what splits of a chain take, in every number of stages: the terms of `chain`'s sum.

Each term is bounded by itself, over all splits that fit the memory: largest load, sum of loads, and
what is left of the tails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import NO_NAN, compiled_as, inlined, lazily_compiled
from phaze_opt.placement.closed_form import held_at, pipelined_s

TIE = 1e-12
"""Relative difference below which two times count as equal."""


@inlined
def reach_of(in_flight_limit: IntArray, held: int, i: int, reach: int) -> int:
    """Return up to which layer a stage that begins with layer ``i`` may fit, ``i`` if not at all.

    The answer for fewer microbatches in flight is a start.
    """
    while reach > i and in_flight_limit[i, reach] < held:
        reach -= 1
    return reach


@lazily_compiled(
    "UniTuple(float64[:,::1], 2)(float64[:,::1], int64[:,::1], int64[::1])", fastmath=NO_NAN
)
def least_loads(
    load_s: FloatArray, in_flight_limit: IntArray, held: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Bound the last stages of every number, from every layer on.

    Parameters
    ----------
    load_s, in_flight_limit : (layers, layers + 1)
        Of every stage, see `phaze_opt.placement.costs`.
    held : (most stages + 1,)
        Microbatches in flight of a stage by its place from the end of the pipeline, which never
        fall.

    Returns
    -------
    most_s, sum_s : (most stages + 1, layers + 1)
        The least largest load, and the least sum of loads, of so many stages that hold the layers
        from one on; infinite where no split fits the memory.
    """
    layers, most_stages = load_s.shape[0], len(held) - 1
    most = np.full((most_stages + 1, layers + 1), np.inf)
    least_sum = np.full((most_stages + 1, layers + 1), np.inf)
    most[0, layers] = 0.0
    least_sum[0, layers] = 0.0
    reach = np.full(layers, layers)
    # The first and the last layer from which so many stages fit.
    first = last = layers
    for place in range(1, most_stages + 1):
        rest_first, rest_last = first, last
        first, last = layers, -1
        for i in range(rest_last - 1, -1, -1):
            reach[i] = reach_of(in_flight_limit, held[place], i, reach[i])
            # Slices of the next stages: what a processor does several of at once.
            ends = slice(max(i + 1, rest_first), min(rest_last, reach[i]) + 1)
            load, limit = load_s[i, ends], in_flight_limit[i, ends]
            rest_most, rest_sum = most[place - 1, ends], least_sum[place - 1, ends]
            least_most = total = np.inf
            for j in range(load.shape[0]):
                here = load[j] if limit[j] >= held[place] else np.inf
                least_most = min(least_most, max(here, rest_most[j]))
                total = min(total, here + rest_sum[j])
            if least_most < np.inf:
                most[place, i] = least_most
                least_sum[place, i] = total
                first, last = i, max(last, i)
    return most, least_sum


@lazily_compiled(
    "float64[::1](float64[:,::1], int64[:,:,::1], int64[::1], int64[::1], int64[::1], boolean)"
)
def least_most(
    load_s: FloatArray,
    limits: IntArray,
    table: IntArray,
    microbatches: IntArray,
    stages: IntArray,
    all_held: bool,
) -> FloatArray:
    """Return the least largest load of all layers in some numbers of stages; see `least_loads`.

    Parameters
    ----------
    load_s : (layers, layers + 1)
        Of every stage.
    limits : (tables, layers, layers + 1)
        Most microbatches in flight of every stage.
    table, microbatches, stages : (candidates,)
        Table, microbatches, and number of stages, sorted by the first two.
    all_held
        Whether every stage holds all microbatches (GPipe).
    """
    most = np.empty(len(stages))
    begin = end = 0
    while begin < len(stages):
        most_stages = 0
        while end < len(stages) and (
            table[end] == table[begin] and microbatches[end] == microbatches[begin]
        ):
            most_stages, end = max(most_stages, stages[end]), end + 1
        held = np.empty(most_stages + 1, np.int64)
        for place in range(most_stages + 1):
            held[place] = held_at(place, microbatches[begin], all_held)
        most_s, _ = least_loads(load_s, limits[table[begin]], held)
        for candidate in range(begin, end):
            most[candidate] = most_s[stages[candidate], 0]
        begin = end
    return most


@inlined
def _may_be_first(
    end: int, others: int, most_s: FloatArray, in_flight_limit: IntArray, held: int
) -> bool:
    """Say whether a first stage that ends before some layer fits, and so many others after it."""
    return bool(in_flight_limit[0, end] >= held and most_s[others, end] < np.inf)


@inlined
def filled_s(microbatches: float, stages: int, largest_s: float, total_s: float) -> float:
    """Bound the replay of more microbatches than stages, savings aside; see `least_times`."""
    return 2.0 * total_s + (microbatches - stages - 1) * largest_s


@compiled_as(
    "float64[:,::1], int64[::1], int64[::1], int64[::1], float64[::1], float64[::1], boolean"
)
class Classes(NamedTuple):
    """Candidates that are bounded together, one of each class.

    Attributes
    ----------
    tails_s : (rows, layers)
        Tails of a first stage of 1, 2, … layers, by the number of replicas.
    rows, pipeline, microbatches, even_share : (candidates,)
        Their row of the tails, their stages and microbatches, and `even_share`.
    least_s : (candidates,)
        What all stages take at least for a microbatch; 0 where their loads say it.
    all_held
        Whether every stage holds all microbatches (GPipe).
    """

    tails_s: FloatArray
    rows: IntArray
    pipeline: IntArray
    microbatches: IntArray
    even_share: FloatArray
    least_s: FloatArray
    all_held: bool


@lazily_compiled(
    "UniTuple(float64[::1], 3)(float64[:,::1], float64, int64[:,::1], int64[::1], Classes)"
)
def least_times(
    load_s: FloatArray, saving_s: float, in_flight_limit: IntArray, held: IntArray, classes: Classes
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bound many candidates from below: their closed form, and the replay of any split.

    The replayed time less the tail of the first stage is, with loads L of p stages, their largest M
    and their sum S (see the paths of `phaze_opt.placement.split_bounds`; the savings are taken from
    all of them):

    - at least ``m·M``, and ``Σ_{j<s} L_j + m·L_s`` for every s, so that S is at most ``1 − (1 −
      1/m)^p`` of it;
    - of GPipe, at least ``S + (m − 1)·M``;
    - of 1F1B with m > p, at least ``S + (m − h)·L_s + Σ_{j>s} L_j`` for every s. Where s has the
      largest load, no more than ``(p − h)·M`` comes before it: ``2·S + (m − p − 1)·M``.

    Parameters
    ----------
    load_s, in_flight_limit : (layers, layers + 1)
        Of every stage.
    saving_s
        By how much the first backwards of all stages together are shorter, at most.
    held : (most stages + 1,)
        As for `least_loads`.
    classes
        The candidates.

    Returns
    -------
    work_s, time_s, replayed_s : (candidates,)
        The closed form without and with the tail, and the replay; infinite where the stages do not
        fit.
    """
    tails_s, rows, pipeline, microbatches, even_share, least_s, all_held = classes
    layers = load_s.shape[0]
    most_s, sum_s = least_loads(load_s, in_flight_limit, held)
    # The least load of a first stage of so many layers or more.
    or_more_s = load_s[0].copy()
    for j in range(layers - 1, 0, -1):
        or_more_s[j] = min(or_more_s[j], or_more_s[j + 1])
    work_s = np.full(len(pipeline), np.inf)
    time_s = np.full(len(pipeline), np.inf)
    replayed_s = np.full(len(pipeline), np.inf)
    # The first and the last end of a first stage, by the number of stages: many fit nowhere.
    first, last = np.full(len(held), layers), np.zeros(len(held), np.int64)
    for stages in range(1, len(held)):
        for j in range(1, layers + 1):
            if _may_be_first(j, stages - 1, most_s, in_flight_limit, held[stages]):
                first[stages], last[stages] = min(first[stages], j), j
    for index in range(len(pipeline)):
        stages, of_batch = pipeline[index], microbatches[index]
        for j in range(first[stages], last[stages] + 1):
            if of_batch * or_more_s[j] > time_s[index] * (1.0 + TIE):
                longer_s = of_batch * or_more_s[j] - saving_s
                replayed_s[index] = min(replayed_s[index], longer_s)
                break
            if not _may_be_first(j, stages - 1, most_s, in_flight_limit, held[stages]):
                continue
            largest = max(load_s[0, j], most_s[stages - 1, j], least_s[index] / stages)
            total = max(load_s[0, j] + sum_s[stages - 1, j], least_s[index])
            work, tail = pipelined_s(of_batch, largest, total), tails_s[rows[index], j - 1]
            work_s[index] = min(work_s[index], work)
            time_s[index] = min(time_s[index], work + tail)
            least = max(of_batch * largest, total / even_share[index])
            if all_held:
                least = max(least, work)
            elif of_batch > stages:
                least = max(least, filled_s(of_batch, stages, largest, total))
            replayed_s[index] = min(replayed_s[index], least - saving_s + tail)
    return work_s, time_s, replayed_s


@lazily_compiled(
    "UniTuple(float64, 2)(float64[::1], int64[::1], float64[::1], float64, float64)",
    allocates=False,
)
def least_of_work(
    microbatches: FloatArray,
    stages: IntArray,
    even_share: FloatArray,
    all_s: float,
    largest_s: float,
) -> tuple[float, float]:
    """Bound many candidates from below by the work of the layers alone.

    Parameters
    ----------
    microbatches, stages, even_share
        See `phaze_opt.placement.candidates.DeepestPipelines`.
    all_s, largest_s
        Of one microbatch: of all layers, and of the largest.

    Returns
    -------
    The closed form of splits, and their replay; endless where there is no candidate.
    """
    closed_s = replayed_s = np.inf
    for index in range(len(microbatches)):
        # With as many microbatches, more stages do no more each, and all of them no less.
        fullest_s = max(all_s / stages[index], largest_s)
        closed_s = min(closed_s, pipelined_s(microbatches[index], fullest_s, all_s))
        least_s = max(microbatches[index] * largest_s, all_s / even_share[index])
        replayed_s = min(replayed_s, least_s)
    return closed_s, replayed_s


@lazily_compiled("float64[::1](float64[:,::1], float64[:,::1], int64)")
def least_tail_terms(tail_s: FloatArray, backward_s: FloatArray, most_stages: int) -> FloatArray:
    """Return the least ``max over s of (tail_s − Σ_{j<s} b_j)`` for every number of stages.

    Parameters
    ----------
    tail_s, backward_s : (layers, layers + 1)
        Of every stage; memory is not looked at.
    most_stages
        Largest number of stages asked for.
    """
    layers = tail_s.shape[0]
    # The least tail of a stage that ends where it does or later.
    or_more_s = tail_s.copy()
    for i in range(layers):
        for j in range(layers - 1, i, -1):
            or_more_s[i, j] = min(or_more_s[i, j], or_more_s[i, j + 1])
    terms = np.full(most_stages + 1, np.inf)
    after = np.full(layers + 1, np.inf)
    after[layers] = -np.inf
    for place in range(1, most_stages + 1):
        here = np.full(layers + 1, np.inf)
        for i in range(layers - place, -1, -1):
            for j in range(i + 1, layers - place + 2):
                if or_more_s[i, j] >= here[i]:
                    break
                here[i] = min(here[i], max(tail_s[i, j], after[j] - backward_s[i, j]))
        terms[place] = here[0]
        after = here
    return terms

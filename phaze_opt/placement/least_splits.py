"""Least time of a batch over all splits of a chain, for many accelerators: compiled loops.

A batch of m microbatches on stages 1 … p, with forward work F, backward work B (recompute,
gradient accumulation and receives included; b: the first microbatch's, without accumulation) and
tails, takes at least the following, for every stage s (paths through the events that
`phaze_opt.placement.pipeline` replays; h: microbatches in flight at s; ``1`` is the first stage):

    (1) Σ_{j<s} F_j + m·F_s + b_s + (m−1)·B_s + tail_s
    (2) Σ_{j<s} (F_j + B_j) + m·F_s + b_s + (m−1)·B_s + tail_1
    (3) Σ_j F_j + Σ_{j≥s} b_j + (m−1)·B_s + (m−h)·F_s + tail_s
    (4) Σ_j F_j + Σ_{j≥s} b_j + (m−1)·B_s + (m−h)·F_s + Σ_{j<s} B_j + tail_1
    (5) Σ_j F_j + Σ_{j≥s} b_j + (m−h)·(F_s+B_s) + Σ_{j>s} (F_j+B_j) + tail_s
    (6) the same, with Σ_{j<s} B_j + tail_1 instead of tail_s

(3) to (6) pass through the first backward, for which a stage has done at most h forwards; GPipe
does all forwards before it, and (3) and (4) pass through m − 1 forwards of every stage. (5) and (6)
follow the last microbatch from its forward at s to the last stage and back, and are for m > h: the
h − 1 backwards that stage s still owes then are less work than what they wait for. A queue of Q
seconds beside the compute C of a stage, that takes the share κ of it, ends after at least ``max(C +
κ·Q, κ·C + Q)``; so does whatever takes turns, with κ = 1.

All of these grow with the end of a stage and fall with its start. Whether some split takes at most
T is therefore found by giving every stage as many layers as T and the memory allow, first stage
first. The answer is the largest T of a fixed geometric grid that no split reaches: it is monotone
in every input, since nothing but sums, maxima and minima over splits is compared with the grid.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, compiled_as, inlined, lazily_compiled
from phaze_opt.placement.closed_form import after_first_s, busy_s, forwards_again, held_at
from phaze_opt.placement.exchanges import cheapest_line_s

GRID_STEPS = 8192
"""Steps of the grid of times per factor of two: the answer is at most 0.01 % too low for it."""

_GRID_ORIGIN_S = math.pi / 3.0
"""A time of the grid; times that occur in tests and files are not near the grid's."""

_ROUNDING = 1e-12
"""Relative error by which a sum may exceed a time and count as equal."""

MOST_S = 1e300
"""A time that is never the answer, but finite."""

_SMALLEST_S = 1e-12
"""The grid begins here."""

# Columns of the candidates' whole numbers; −1 is no row of a table, GPIPE, OVERLAPS and
# SHARES_LEVEL are 0 or 1, SPLITS_BACKWARD is 0, STRAIGHT or IN_V. A pipeline that splits the
# backward is known to do its work only; replicas that share a level of the network with the groups
# beside them send while those do not.
(
    STAGES,
    MICROBATCHES,
    CHUNKS,
    LIMIT,
    SYNCHRONISED,
    GATHERED,
    EVERY_PASS,
    GPIPE,
    OVERLAPS,
    SYNCHRONISED_ROUTED,
    GATHERED_ROUTED,
    SPLITS_BACKWARD,
    SHARES_LEVEL,
) = range(13)
# Columns of the candidates' real numbers; REACH: 1 − (1 − 1/m)^p, at most p/m if
# interleaved, p/m with split backwards; MOST_REPEATED: how many of the layer that is repeated most
# the stage with most of them has at least; ALONE: share of the microbatches that are in no pair;
# what the chip gives is filled in last.
(
    ACTIVATION_S,
    GRADIENT_S,
    EXCHANGE_LATENCY_S,
    EXCHANGE_S_PER_PARAMETER,
    EXCHANGE_S_PER_ROOT,
    OPTIMIZER_SHARDS,
    GRADIENT_SHARDS,
    MEAN_SYNCHRONISATION_S,
    REACH,
    MOST_REPEATED,
    ALONE,
    STEP_S,
    ACCUMULATION_S,
    SHARE,
) = range(14)

STRAIGHT, IN_V = 1, 2
"""How a pipeline that splits the backward lies: one chunk per stage, or two in a V."""

# Rows of `sums` and of `held`.
FORWARD, BACKWARD, OWN, ADDED, LAST, MORE_FORWARD, MORE_BACKWARD = range(7)
PARAMETERS, _TIED, ROUTED = range(3)


@compiled_as(
    "float64[::1], float64[::1], float64[:,::1], float64[:,:,::1], float64[:,:,::1],"
    " float64[:,:,::1], int64[:,:,::1], int64[:,::1], float64[:,::1]"
)
class CandidateArrays(NamedTuple):
    """Candidates at one tensor degree that fit some memory, and what they share.

    Attributes
    ----------
    own : (layers,)
        Parameters of each layer, tied ones with the first that holds them.
    added : (layers,)
        At least those among them whose gradients are added up beside the passes.
    links : (2, layers + 1)
        See `Split`.
    every_pass : (groups, 2, layers + 1)
        Sums over the layers before each of what replicas exchange in every forward and backward.
    lines, held, limit
        See `Split`.
    whole : (candidates, 13)
        See the columns above; by falling REACH.
    real : (candidates, 14)
        The same.
    """

    own: FloatArray
    added: FloatArray
    links: FloatArray
    every_pass: FloatArray
    lines: FloatArray
    held: FloatArray
    limit: IntArray
    whole: IntArray
    real: FloatArray


@compiled_as(
    "float64[:,::1], float64[:,::1], float64[:,:,::1], float64[:,:,::1], int64[:,:,::1],"
    " int64[::1], float64[::1]"
)
class Split(NamedTuple):
    """What is split: the layers on one accelerator, by one of the candidates.

    Attributes
    ----------
    sums : (7, layers + 1)
        Sums over the layers before each: seconds of the forward, of the backward with accumulation,
        parameters that count once, and those among them that are added up beside the passes. And
        the least backward, without the network, of any layer from the one before each on: no
        gradients of a stage are sent before its last layer has ended its own. And by how much the
        first forward and the last backward of a batch, which have no other microbatch beside them,
        take longer than the average.
    links : (2, layers + 1)
        The same of the seconds for which groups beside the replicas use the network, in the forward
        and in the backward with recompute.
    lines : (groups, algorithms, 3)
        Times of collectives by parameters, see `exchanges.lines_of`.
    held : (3, layers, layers + 1)
        Parameters of every stage, and the tied ones among them, and the share of routed experts,
        which only replicas with the same share exchange.
    limit : (tables, layers, layers + 1)
        Most microbatches in flight of every stage.
    whole, real
        The candidate; see the columns above.
    """

    sums: FloatArray
    links: FloatArray
    lines: FloatArray
    held: FloatArray
    limit: IntArray
    whole: IntArray
    real: FloatArray


@inlined
def collective_of_s(
    row: int, routed_row: int, parameters: float, routed: float, lines: FloatArray
) -> float:
    """Return the time of a collective of parameters, of which some are of routed experts.

    Parameters
    ----------
    row, routed_row
        Among ``lines``: of all replicas, and of those with the same share of the experts, −1 where
        there are no others.
    parameters, routed, lines
        See `Split`.
    """
    time_s: float = cheapest_line_s(lines[row], parameters - routed)
    if routed_row >= 0:
        time_s += cheapest_line_s(lines[routed_row], routed)
    return time_s


@inlined
def beside_s(pass_s: float, link_s: float, split: Split) -> float:
    """Return the part of a pass in which replicas can send.

    Parameters
    ----------
    pass_s
        The pass of some layers.
    link_s
        Seconds in it for which groups beside the replicas use the network, see `Split`.
    split
        The candidate: whether its replicas share a level of the network with those groups.
    """
    return max(pass_s - link_s, 0.0) if split.whole[SHARES_LEVEL] == 1 else pass_s


@inlined
def following_s(i: int, j: int, backward: float, split: Split) -> float:
    """Return what follows some backward work of the stage ``i … j − 1``."""
    links, lines, held = split.links, split.lines, split.held
    whole, real = split.whole, split.real
    parameters, tied, routed = held[PARAMETERS, i, j], held[_TIED, i, j], held[ROUTED, i, j]
    tail_s: float = parameters * real[STEP_S]
    if whole[SYNCHRONISED] >= 0:
        rows = whole[SYNCHRONISED], whole[SYNCHRONISED_ROUTED]
        sent_s = collective_of_s(rows[0], rows[1], parameters, routed, lines)
        more_s = split.sums[MORE_BACKWARD, j] - split.sums[MORE_BACKWARD, i]
        cover_s = beside_s(backward + more_s, links[BACKWARD, j] - links[BACKWARD, i], split)
        cover_s = max(cover_s - split.sums[LAST, j], 0.0)
        tail_s += max(real[SHARE] * sent_s, sent_s - (1.0 - real[SHARE]) * cover_s)
    if whole[GATHERED] >= 0 and whole[OVERLAPS] == 0:
        rows = whole[GATHERED], whole[GATHERED_ROUTED]
        tail_s += collective_of_s(rows[0], rows[1], parameters, routed, lines)
    if whole[STAGES] > 1 and tied > 0.0:
        tail_s += real[EXCHANGE_LATENCY_S] + tied * real[EXCHANGE_S_PER_PARAMETER]
        tail_s += math.sqrt(tied) * real[EXCHANGE_S_PER_ROOT]
    return tail_s


@inlined
def _stage_s(stage: int, i: int, j: int, first_tail_s: float, split: Split) -> float:
    """Return the least time of a batch in which a stage holds the layers ``i … j − 1``.

    Parameters
    ----------
    stage
        From 1.
    i, j
        Its layers.
    first_tail_s
        Tail of the first stage, for the other ones.
    split
        The rest of it.
    """
    sums, links, lines, held, limit, whole, real = split
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    place, all_held = stages - stage + 1, whole[GPIPE] == 1
    in_flight = held_at(place, microbatches, all_held)
    if limit[whole[LIMIT], i, j] < in_flight:
        return np.inf
    again = forwards_again(place, microbatches, all_held)
    activation_s, gradient_s, share = real[ACTIVATION_S], real[GRADIENT_S], real[SHARE]
    forward = sums[FORWARD, j] - sums[FORWARD, i]
    backward = sums[BACKWARD, j] - sums[BACKWARD, i]
    if stage > 1:
        forward += activation_s
    if stage < stages:
        backward += gradient_s
    saving_s = (sums[ADDED, j] - sums[ADDED, i]) * real[ACCUMULATION_S]
    work_s = busy_s(microbatches, forward + backward, saving_s)
    begin_s = sums[FORWARD, i] + max(stage - 2, 0) * activation_s
    # Until the stage ends its first backward.
    first_s = sums[FORWARD, layers] + (stages - 1) * activation_s
    first_s += sums[BACKWARD, layers] - sums[BACKWARD, i] + (stages - stage) * gradient_s
    first_s -= (sums[ADDED, layers] - sums[ADDED, i]) * real[ACCUMULATION_S]
    done_s = after_first_s(first_s, microbatches, again, forward, backward)
    done_s = max(done_s, begin_s + work_s)
    if again > 0 and not all_held:
        others_s = sums[FORWARD, layers] - sums[FORWARD, j] + sums[BACKWARD, layers]
        others_s += (stages - stage) * activation_s - sums[BACKWARD, j]
        others_s += max(stages - stage - 1, 0) * gradient_s
        done_s = max(done_s, first_s + again * (forward + backward) + others_s)
    tail_s = following_s(i, j, backward, split)
    least_s: float = done_s + tail_s
    if stage > 1:
        others_s = sums[BACKWARD, i] + (stage - 1) * gradient_s
        least_s = max(least_s, done_s + others_s + first_tail_s)
    if whole[GATHERED] >= 0 and whole[OVERLAPS] == 1:
        rows = whole[GATHERED], whole[GATHERED_ROUTED]
        parameters, routed = held[PARAMETERS, i, j], held[ROUTED, i, j]
        gathered_s = collective_of_s(rows[0], rows[1], parameters, routed, lines)
        more_s = sums[MORE_FORWARD, j] - sums[MORE_FORWARD, i]
        cover_s = beside_s(forward + more_s, links[FORWARD, j] - links[FORWARD, i], split)
        wait_s = max(share * gathered_s, gathered_s - (1.0 - share) * cover_s)
        least_s = max(least_s, wait_s + work_s + tail_s)
    return least_s


@callee("int64(float64, int64, float64, Split)", allocates=False)
def _first_end(time_s: float, first_end: int, first_tail_s: float, split: Split) -> int:
    """Return where the first stage ends in a split that takes at most some time; 0 if none does.

    Parameters
    ----------
    time_s
        The time.
    first_end
        Where the first stage ends; 0 for as late as possible.
    first_tail_s
        Its tail.
    split
        The rest.
    """
    stages, layers = split.whole[STAGES], split.sums.shape[1] - 1
    limit_s = time_s * (1.0 + _ROUNDING)
    i, length = first_end, (layers - 1) // stages + 1
    for stage in range(1 if first_end == 0 else 2, stages + 1):
        most = layers - (stages - stage)
        j = most if stage == stages else min(i + length, most)
        while j > i and not (_stage_s(stage, i, j, first_tail_s, split) <= limit_s):
            j = i if stage == stages else j - 1
        if j == i:
            return 0
        while j < most and (_stage_s(stage, i, j + 1, first_tail_s, split) <= limit_s):
            j += 1
        if stage == 1:
            first_end = j
        i, length = j, j - i
    return first_end


@callee("boolean(float64, Split)", allocates=False)
def _within(time_s: float, split: Split) -> bool:
    """Whether some split takes at most some time, as far as bounds tell; see `_stage_s`."""
    # The first stage's tail is at least that of its first layer beside any work.
    least_tail_s = following_s(0, 1, MOST_S, split)
    end = _first_end(time_s, 0, least_tail_s, split)
    if split.whole[STAGES] == 1:
        return end > 0
    while end > 0:
        backward = split.sums[BACKWARD, end] + split.real[GRADIENT_S]
        tail_s = following_s(0, end, backward, split)
        if _first_end(time_s, end, tail_s, split) > 0:
            return True
        end -= 1
        if end > 0 and _first_end(time_s, end, least_tail_s, split) == 0:
            return False
    return False


@inlined
def _grid_s(step: int) -> float:
    """Return a time of the grid."""
    return _GRID_ORIGIN_S * math.pow(2.0, step / GRID_STEPS)


@inlined
def _grid_step(time_s: float) -> int:
    """Return the last step of the grid at or before a time."""
    step = math.floor(math.log2(max(time_s, _SMALLEST_S) / _GRID_ORIGIN_S) * GRID_STEPS)
    while _grid_s(step) > time_s and step > -64 * GRID_STEPS:
        step -= 1
    while _grid_s(step + 1) <= time_s:
        step += 1
    return step


@callee("float64(float64, float64, Split)", allocates=False)
def least_over_splits_s(least_s: float, known_s: float, split: Split) -> float:
    """Return the largest time of the grid that no split reaches, or a smaller bound before it.

    Parameters
    ----------
    least_s
        A bound that is known already.
    known_s
        From where on the answer need not be exact, but only as large.
    split
        The candidate.
    """
    first = low = _grid_step(least_s)
    if known_s < MOST_S:
        high = _grid_step(known_s) + 1
        if not _within(_grid_s(high), split):
            return known_s
    else:
        if not _within(MOST_S, split):
            return np.inf
        wide = 1
        high = low + 1
        while not _within(_grid_s(high), split):
            low, wide = high, 2 * wide
            high += wide
    while high - low > 1:
        middle = (low + high) // 2
        if _within(_grid_s(middle), split):
            high = middle
        else:
            low = middle
    return _grid_s(low) if low > first else least_s


@lazily_compiled("boolean[::1](float64[:,:,::1], float64[:,:,::1], int64[:,:,::1], int64[:,::1])")
def fitting(lines: FloatArray, held: FloatArray, limit: IntArray, whole: IntArray) -> BoolArray:
    """Return which candidates have a split that fits the memory; see `least_times`."""
    fits = np.ones(len(whole), dtype=np.bool_)
    sums, links = np.zeros((7, held.shape[2])), np.zeros((2, held.shape[2]))
    real = np.ones(SHARE + 1)
    for c in range(len(whole)):
        fits[c] = _within(MOST_S, Split(sums, links, lines, held, limit, whole[c], real))
    return fits

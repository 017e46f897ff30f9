"""Least time of a batch over all splits of a chain, for many accelerators: compiled loops.

A batch of m microbatches on stages 1 … p, with forward work F, backward work B (recompute,
gradient accumulation and receives included; b: the first microbatch's, without accumulation) and
tails, takes at least the following, for every stage s (paths through the events that
`phaze_opt.placement.pipeline` replays; h: microbatches in flight at s; ``1`` is the first stage):

    (1) Σ_{j<s} F_j + m·F_s + b_s + (m−1)·B_s + tail_s
    (2) Σ_{j<s} (F_j + B_j) + m·F_s + b_s + (m−1)·B_s + tail_1
    (3) Σ_j F_j + Σ_{j≥s} b_j + (m−1)·B_s + (m−h)·F_s + tail_s
    (4) Σ_j F_j + Σ_{j≥s} b_j + (m−1)·B_s + (m−h)·F_s + Σ_{j<s} B_j + tail_1

(3) and (4) pass through the first backward, for which a stage has done at most h forwards; GPipe
does all forwards before it, and they pass through m − 1 forwards of every stage. A queue of Q
seconds beside the compute C of a stage, that takes the share κ of it, ends after at least ``max(C +
κ·Q, κ·C + Q)``; so does whatever takes turns, with κ = 1.

All of these grow with the end of a stage and fall with its start. Whether some split takes at most
T is therefore found by giving every stage as many layers as T and the memory allow, first stage
first. The answer is the largest T of a fixed geometric grid that no split reaches: it is monotone
in every input, since nothing but sums, maxima and minima over splits is compared with the grid.
"""

from __future__ import annotations

import math

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import callee, compiled, inlined
from phaze_opt.placement.exchanges import cheapest_line_s

GRID_STEPS = 8192
"""Steps of the grid of times per factor of two: the answer is at most 0.01 % too low for it."""

_GRID_ORIGIN_S = math.pi / 3.0
"""A time of the grid; times that occur in tests and files are not near the grid's."""

_ROUNDING = 1e-12
"""Relative error by which a sum may exceed a time and count as equal."""

_MOST_S = 1e300
"""A time that is never the answer, but finite."""

_SMALLEST_S = 1e-12
"""The grid begins here."""

# Columns of the candidates' whole numbers; −1 is no row of a table, GPIPE and OVERLAPS are 0 or 1.
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
) = range(9)
# Columns of the candidates' real numbers; REACH: 1 − (1 − 1/m)^p, or p/m if
# interleaved; MOST_REPEATED: how many of the layer that is repeated most
# the stage with most of them has at least; what the chip gives is filled in last.
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
    STEP_S,
    ACCUMULATION_S,
    SHARE,
) = range(13)

# Rows of `sums` and of `held`.
_FORWARD, _BACKWARD, _OWN = range(3)
_PARAMETERS, _TIED = range(2)

_SHARED = (
    "float64[:,::1], float64[:,:,::1], float64[:,:,::1], int64[:,:,::1], int64[::1], float64[::1]"
)
"""Types of ``sums, lines, held, limit, whole, real``, see `_stage_s`."""


@inlined
def _tail_s(
    i: int,
    j: int,
    backward: float,
    lines: FloatArray,
    held: FloatArray,
    whole: IntArray,
    real: FloatArray,
) -> float:
    """Return what follows some backward work of the stage ``i … j − 1``; see `_stage_s`."""
    parameters, tied = held[_PARAMETERS, i, j], held[_TIED, i, j]
    tail_s: float = parameters * real[STEP_S]
    if whole[SYNCHRONISED] >= 0:
        sent_s = cheapest_line_s(lines[whole[SYNCHRONISED]], parameters)
        tail_s += max(real[SHARE] * sent_s, sent_s - (1.0 - real[SHARE]) * backward)
    if whole[GATHERED] >= 0 and whole[OVERLAPS] == 0:
        tail_s += cheapest_line_s(lines[whole[GATHERED]], parameters)
    if whole[STAGES] > 1 and tied > 0.0:
        tail_s += real[EXCHANGE_LATENCY_S] + tied * real[EXCHANGE_S_PER_PARAMETER]
        tail_s += math.sqrt(tied) * real[EXCHANGE_S_PER_ROOT]
    return tail_s


@inlined
def _stage_s(
    stage: int,
    i: int,
    j: int,
    first_tail_s: float,
    sums: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    limit: IntArray,
    whole: IntArray,
    real: FloatArray,
) -> float:
    """Return the least time of a batch in which a stage holds the layers ``i … j − 1``.

    Parameters
    ----------
    stage
        From 1.
    i, j
        Its layers.
    first_tail_s
        Tail of the first stage, for the other ones.
    sums : (3, layers + 1)
        Sums over the layers before each: seconds of the forward, of the backward with accumulation,
        and parameters that count once.
    lines : (groups, algorithms, 3)
        Times of collectives by parameters, see `exchanges.lines_of`.
    held : (2, layers, layers + 1)
        Parameters of every stage, and the tied ones among them.
    limit : (tables, layers, layers + 1)
        Most microbatches in flight of every stage.
    whole, real
        The candidate; see the columns above.
    """
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    in_flight = microbatches if whole[GPIPE] else min(stages - stage + 1, microbatches)
    if limit[whole[LIMIT], i, j] < in_flight:
        return np.inf
    again = microbatches - 1 if whole[GPIPE] else microbatches - in_flight
    activation_s, gradient_s, share = real[ACTIVATION_S], real[GRADIENT_S], real[SHARE]
    forward = sums[_FORWARD, j] - sums[_FORWARD, i]
    backward = sums[_BACKWARD, j] - sums[_BACKWARD, i]
    if stage > 1:
        forward += activation_s
    if stage < stages:
        backward += gradient_s
    saving_s = (sums[_OWN, j] - sums[_OWN, i]) * real[ACCUMULATION_S]
    busy_s = microbatches * (forward + backward) - saving_s
    begin_s = sums[_FORWARD, i] + max(stage - 2, 0) * activation_s
    through_s = sums[_FORWARD, layers] + (stages - 1) * activation_s
    through_s += sums[_BACKWARD, layers] - sums[_BACKWARD, i] + (stages - stage) * gradient_s
    through_s -= (sums[_OWN, layers] - sums[_OWN, i]) * real[ACCUMULATION_S]
    through_s += (microbatches - 1) * backward + again * forward
    done_s = max(begin_s + busy_s, through_s)
    tail_s = _tail_s(i, j, backward, lines, held, whole, real)
    least_s: float = done_s + tail_s
    if stage > 1:
        others_s = sums[_BACKWARD, i] + (stage - 1) * gradient_s
        least_s = max(least_s, done_s + others_s + first_tail_s)
    if whole[GATHERED] >= 0 and whole[OVERLAPS] == 1:
        gathered_s = cheapest_line_s(lines[whole[GATHERED]], held[_PARAMETERS, i, j])
        wait_s = max(share * gathered_s, gathered_s - (1.0 - share) * forward)
        least_s = max(least_s, wait_s + busy_s + tail_s)
    return least_s


@callee(f"int64(float64, int64, float64, {_SHARED})")
def _first_end(
    time_s: float,
    first_end: int,
    first_tail_s: float,
    sums: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    limit: IntArray,
    whole: IntArray,
    real: FloatArray,
) -> int:
    """Return where the first stage ends in a split that takes at most some time; 0 if none does.

    Parameters
    ----------
    time_s
        The time.
    first_end
        Where the first stage ends; 0 for as late as possible.
    first_tail_s
        Its tail.
    sums, lines, held, limit, whole, real
        See `_stage_s`.
    """
    stages, layers = whole[STAGES], sums.shape[1] - 1
    limit_s = time_s * (1.0 + _ROUNDING)
    i, length = first_end, (layers - 1) // stages + 1
    for stage in range(1 if first_end == 0 else 2, stages + 1):
        most = layers - (stages - stage)
        j = most if stage == stages else min(i + length, most)
        while j > i and not (
            _stage_s(stage, i, j, first_tail_s, sums, lines, held, limit, whole, real) <= limit_s
        ):
            j = i if stage == stages else j - 1
        if j == i:
            return 0
        while j < most and (
            _stage_s(stage, i, j + 1, first_tail_s, sums, lines, held, limit, whole, real)
            <= limit_s
        ):
            j += 1
        if stage == 1:
            first_end = j
        i, length = j, j - i
    return first_end


@callee(f"boolean(float64, {_SHARED})")
def _within(
    time_s: float,
    sums: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    limit: IntArray,
    whole: IntArray,
    real: FloatArray,
) -> bool:
    """Whether some split takes at most some time, as far as bounds tell; see `_stage_s`."""
    # The first stage's tail is at least that of its first layer beside any work.
    least_tail_s = _tail_s(0, 1, _MOST_S, lines, held, whole, real)
    end = _first_end(time_s, 0, least_tail_s, sums, lines, held, limit, whole, real)
    if whole[STAGES] == 1:
        return end > 0
    while end > 0:
        backward = sums[_BACKWARD, end] + real[GRADIENT_S]
        tail_s = _tail_s(0, end, backward, lines, held, whole, real)
        if _first_end(time_s, end, tail_s, sums, lines, held, limit, whole, real) > 0:
            return True
        end -= 1
        if end > 0:
            least = _first_end(time_s, end, least_tail_s, sums, lines, held, limit, whole, real)
            if least == 0:
                return False
    return False


@inlined
def _at_once_s(
    sums: FloatArray, lines: FloatArray, held: FloatArray, whole: IntArray, real: FloatArray
) -> float:
    """Bound the time of a batch over all splits by the stages' average, memory aside.

    It holds for interleaved stages too, whose last backward of the chunk that comes first follows
    all forwards and the backwards of all but p microbatches.
    """
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    messages = stages * whole[CHUNKS] - 1
    forward_s = sums[_FORWARD, layers] + messages * real[ACTIVATION_S]
    backward_s = sums[_BACKWARD, layers] + messages * real[GRADIENT_S]
    saving_s = sums[_OWN, layers] * real[ACCUMULATION_S]
    once_s: float = forward_s + backward_s - saving_s
    busy_s = microbatches * (forward_s + backward_s) - saving_s
    sent_s, share = real[MEAN_SYNCHRONISATION_S], real[SHARE]
    step_s = sums[_OWN, layers] * real[STEP_S] / stages
    least_s: float = busy_s / stages + share * sent_s
    if whole[CHUNKS] > 1:
        before_s = max((microbatches - stages) * backward_s - saving_s, 0.0)
        before_s += microbatches * forward_s
        least_s = max(least_s, before_s / stages + sent_s)
        return float(max(once_s, least_s + step_s))
    least_s = max(least_s, (busy_s - (1.0 - share) * backward_s) / stages + sent_s)
    in_flight = 1 if whole[GPIPE] else min(stages, microbatches)
    rounds_s = (microbatches - 1) * backward_s + (microbatches - in_flight) * forward_s
    through_s: float = once_s + rounds_s / stages
    through_s += _tail_s(0, 1, _MOST_S, lines, held, whole, real)
    return float(max(least_s + step_s, through_s))


@callee("float64[:,::1](int64[::1], float64[::1])")
def _kinds(distinct: IntArray, own: FloatArray) -> FloatArray:
    """Return count, a layer, and the fewest parameters of every distinct layer, a row each."""
    kinds = np.zeros((distinct.max() + 1, 3))
    for layer in range(len(distinct) - 1, -1, -1):
        kind = distinct[layer]
        least = own[layer] if kinds[kind, 0] == 0.0 else min(kinds[kind, 2], own[layer])
        kinds[kind, 0] += 1.0
        kinds[kind, 1] = layer
        kinds[kind, 2] = least
    return kinds


@inlined
def _pipelined_s(
    sums: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    whole: IntArray,
    real: FloatArray,
    kinds: FloatArray,
    most: int,
) -> float:
    """Bound the time of a batch over all splits by what pipelines wait for; see the module.

    From (2), with q = 1 − 1/m: the first s stages have at most T·(1 − q^s) seconds of work, where T
    is less the first tail. From (3) and (4) for n layers, those that are repeated most: with a_s =
    (m − 1)·b + (m − h)·f of one such layer, stage s has at most (T − c − σ·x)/a_s of them, where
    the first one has x ≤ (T − c)/(a_1 + σ); c is one microbatch through all stages and the least
    tail, and σ what the tail grows by with each. They add up to n for no T below ``c + n / (W +
    max(0, 1 − σ·W)/(a_1 + σ))`` with W = Σ_{s>1} 1/a_s. And the largest share of these layers that
    a stage has bounds (1) and (4).
    """
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    first_tail_s = _tail_s(0, 1, _MOST_S, lines, held, whole, real)
    saving_s = sums[_OWN, layers] * real[ACCUMULATION_S]
    forward_s = sums[_FORWARD, layers] + (stages - 1) * real[ACTIVATION_S]
    once_s = forward_s + sums[_BACKWARD, layers] + (stages - 1) * real[GRADIENT_S]
    least_s: float = (once_s - saving_s / microbatches) / real[REACH] + first_tail_s
    once_s -= saving_s
    rounds, repeated = microbatches - 1.0, real[MOST_REPEATED]
    in_flight = 1 if whole[GPIPE] else min(stages, microbatches)
    layer = int(kinds[most, 1])
    forward = sums[_FORWARD, layer + 1] - sums[_FORWARD, layer]
    own = sums[_OWN, layer + 1] - sums[_OWN, layer]
    backward = sums[_BACKWARD, layer + 1] - sums[_BACKWARD, layer]
    backward -= (own - kinds[most, 2]) * real[ACCUMULATION_S]
    own = kinds[most, 2]
    again_s = rounds * backward + (microbatches - in_flight) * forward
    least_s = max(least_s, once_s + repeated * again_s + first_tail_s)
    sent_s = 0.0
    if whole[SYNCHRONISED] >= 0:
        sent_s = cheapest_line_s(lines[whole[SYNCHRONISED]], repeated * own)
        sent_s = max(real[SHARE] * sent_s, sent_s - (1.0 - real[SHARE]) * repeated * backward)
    load_s = microbatches * (forward + backward) - own * real[ACCUMULATION_S]
    least_s = max(least_s, repeated * (load_s + own * real[STEP_S]) + sent_s)
    if again_s > 0.0:
        weight = (stages - in_flight) / again_s
        if in_flight > 1 and forward > 1e-9 * again_s:
            # The sum over h is at most the integral, and its last term.
            last_s = rounds * (backward + forward)
            weight += math.log(last_s / again_s) / forward
        else:
            weight += (in_flight - 1) / again_s
        count = kinds[most, 0]
        # A chord of the first stage's tail, which is concave: that of the first layer, and more
        # for every repeated one.
        each_s = own * real[STEP_S]
        if whole[SYNCHRONISED] >= 0:
            begin = 0.0 if kinds[most, 1] == 0.0 else held[_PARAMETERS, 0, 1]
            rows = lines[whole[SYNCHRONISED]]
            more_s = cheapest_line_s(rows, begin + count * own) - cheapest_line_s(rows, begin)
            each_s += real[SHARE] * more_s / count
        if kinds[most, 1] == 0.0:
            first_tail_s = 0.0
        others = weight + max(0.0, 1.0 - each_s * weight) / (again_s + each_s)
        least_s = max(least_s, once_s + first_tail_s + count / others)
    return least_s


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


@callee(f"float64(float64, float64, {_SHARED})")
def _least_over_splits_s(
    least_s: float,
    known_s: float,
    sums: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    limit: IntArray,
    whole: IntArray,
    real: FloatArray,
) -> float:
    """Return the largest time of the grid that no split reaches, or a smaller bound before it.

    Parameters
    ----------
    least_s
        A bound that is known already.
    known_s
        From where on the answer need not be exact, but only as large.
    sums, lines, held, limit, whole, real
        See `_stage_s`.
    """
    first = low = _grid_step(least_s)
    if known_s < _MOST_S:
        high = _grid_step(known_s) + 1
        if not _within(_grid_s(high), sums, lines, held, limit, whole, real):
            return known_s
    else:
        if not _within(_MOST_S, sums, lines, held, limit, whole, real):
            return np.inf
        wide = 1
        high = low + 1
        while not _within(_grid_s(high), sums, lines, held, limit, whole, real):
            low, wide = high, 2 * wide
            high += wide
    while high - low > 1:
        middle = (low + high) // 2
        if _within(_grid_s(middle), sums, lines, held, limit, whole, real):
            high = middle
        else:
            low = middle
    return _grid_s(low) if low > first else least_s


@inlined
def _sum_up(
    way: int,
    work: FloatArray,
    every_pass: FloatArray,
    group: int,
    real: FloatArray,
    sums: FloatArray,
) -> None:
    """Fill the sums of forward and backward with compute and what runs beside it in every pass.

    A pass of compute C beside a queue of Q seconds takes at least C + share · Q, and share · C + Q.
    ``way`` says which of the two holds: bit 0 of the forward, bit 1 of the backward.
    """
    for row in range(2):
        queued = way >> row & 1
        compute_share = real[SHARE] if queued else 1.0
        queue_share = 1.0 if queued else real[SHARE]
        for layer in range(sums.shape[1]):
            sums[row, layer] = compute_share * work[row, layer]
            if group >= 0:
                sums[row, layer] += queue_share * every_pass[group, row, layer]
    for layer in range(sums.shape[1]):
        sums[_BACKWARD, layer] += real[ACCUMULATION_S] * sums[_OWN, layer]


@compiled(
    "float64[::1](int64[::1], float64[:,:,::1], float64[:,::1], float64[::1], float64[:,:,::1],"
    " float64[:,:,::1], float64[:,:,::1], int64[:,:,::1], int64[:,::1], float64[:,::1],"
    " float64[::1], boolean)"
)
def least_times_s(
    distinct: IntArray,
    seconds: FloatArray,
    rates: FloatArray,
    own: FloatArray,
    every_pass: FloatArray,
    lines: FloatArray,
    held: FloatArray,
    limit: IntArray,
    whole: IntArray,
    real: FloatArray,
    known_s: FloatArray,
    splits: bool,
) -> FloatArray:
    """Bound the least time of a batch over all candidates and splits, of many accelerators.

    Parameters
    ----------
    distinct : (layers,)
        Which distinct layer each layer is.
    seconds : (accelerators, 2, distinct layers)
        Forward, and backward with recompute.
    rates : (accelerators, 3)
        Seconds per parameter of the optimizer step and of accumulation, and the share of a device's
        cores that communication takes.
    own : (layers,)
        Parameters of each layer, tied ones with the first that holds them.
    every_pass : (groups, 2, layers + 1)
        Sums over the layers before each of what replicas exchange in every forward and backward.
    lines, held, limit
        See `_stage_s`.
    whole : (candidates, 9)
        See the columns above; by falling REACH.
    real : (candidates, 13)
        The same.
    known_s : (accelerators,)
        Times from which on the answer need not be exact.
    splits
        Whether to look at splits; without them the answer is smaller and comes sooner.

    Returns
    -------
    (accelerators,)
        Seconds, at most ``known_s``; infinite where nothing fits.
    """
    accelerators, layers = seconds.shape[0], len(distinct)
    answers = known_s.copy()
    work = np.zeros((2, layers + 1))
    sums = np.zeros((3, layers + 1))
    one = np.zeros(real.shape[1])
    kinds = _kinds(distinct, own)
    most = int(np.argmax(kinds[:, 0]))
    best = 0
    if len(whole) == 0:
        return answers
    for layer in range(layers):
        sums[_OWN, layer + 1] = sums[_OWN, layer] + own[layer]
    for a in range(accelerators):
        for layer in range(layers):
            for row in range(2):
                work[row, layer + 1] = work[row, layer] + seconds[a, row, distinct[layer]]
        all_s = work[0, layers] + work[1, layers]
        repeated = distinct[int(kinds[most, 1])]
        most_s = seconds[a, 0, repeated] + seconds[a, 1, repeated]
        first_best, summed_s = best, -1.0
        for turn in range(-1, len(whole)):
            # What was best for the accelerator before is likely to be good, and closes others.
            c = first_best if turn < 0 else turn
            answer_s = answers[a]
            if turn >= 0 and all_s / real[c, REACH] >= answer_s:
                break
            if turn == first_best:
                continue
            overlaps, several = whole[c, OVERLAPS] == 1, whole[c, MICROBATCHES] > 1
            # Most candidates end here, by parts of the bounds below.
            sent_s = real[c, MEAN_SYNCHRONISATION_S] * (rates[a, 2] if overlaps else 1.0)
            share_s = max(all_s / whole[c, STAGES], real[c, MOST_REPEATED] * most_s)
            if whole[c, MICROBATCHES] * share_s >= answer_s:
                continue
            if whole[c, MICROBATCHES] * all_s / whole[c, STAGES] + sent_s >= answer_s:
                continue
            one[:] = real[c]
            one[STEP_S] = rates[a, 0] / one[OPTIMIZER_SHARDS]
            one[ACCUMULATION_S] = rates[a, 1] / one[GRADIENT_SHARDS] if several else 0.0
            one[SHARE] = rates[a, 2] if overlaps else 1.0
            sent = whole[c, EVERY_PASS]
            ways = 4 if overlaps and sent >= 0 else 1
            least_s = 0.0
            for way in range(ways):
                if sent >= 0 or summed_s != one[ACCUMULATION_S]:
                    _sum_up(way, work, every_pass, sent, one, sums)
                    summed_s = one[ACCUMULATION_S] if sent < 0 else -1.0
                least_s = max(least_s, _at_once_s(sums, lines, held, whole[c], one))
                if least_s >= answer_s:
                    break
                if whole[c, CHUNKS] == 1:
                    more_s = _pipelined_s(sums, lines, held, whole[c], one, kinds, most)
                    least_s = max(least_s, more_s)
                if splits and whole[c, CHUNKS] == 1 and least_s < answer_s:
                    least_s = _least_over_splits_s(
                        least_s, answer_s, sums, lines, held, limit, whole[c], one
                    )
                if least_s >= answer_s:
                    break
            if least_s < answer_s:
                answers[a], best = least_s, c
    return answers


@compiled("boolean[::1](float64[:,:,::1], float64[:,:,::1], int64[:,:,::1], int64[:,::1])")
def fitting(lines: FloatArray, held: FloatArray, limit: IntArray, whole: IntArray) -> BoolArray:
    """Return which candidates have a split that fits the memory; see `least_times_s`."""
    fits = np.ones(len(whole), dtype=np.bool_)
    sums = np.zeros((3, held.shape[2]))
    real = np.ones(13)
    for c in range(len(whole)):
        fits[c] = _within(_MOST_S, sums, lines, held, limit, whole[c], real)
    return fits

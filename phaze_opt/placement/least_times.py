"""Lower bounds of the time of a batch over all candidates, for many accelerators: compiled loops.

Closed forms of the stages' average, and of what pipelines wait for, close most candidates; the
others are left to `phaze_opt.placement.least_splits`, whose docstring has the paths (1) to (4).
"""

from __future__ import annotations

import math

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import callee, inlined, lazily_compiled
from phaze_opt.placement.closed_form import after_first_s, busy_s, forwards_again
from phaze_opt.placement.least_splits import (
    ACCUMULATION_S,
    ACTIVATION_S,
    ADDED,
    ALONE,
    BACKWARD,
    CHUNKS,
    EVERY_PASS,
    FORWARD,
    GPIPE,
    GRADIENT_S,
    GRADIENT_SHARDS,
    IN_V,
    LAST,
    MEAN_SYNCHRONISATION_S,
    MICROBATCHES,
    MORE_BACKWARD,
    MORE_FORWARD,
    MOST_REPEATED,
    MOST_S,
    OPTIMIZER_SHARDS,
    OVERLAPS,
    OWN,
    PARAMETERS,
    REACH,
    ROUTED,
    SHARE,
    SPLITS_BACKWARD,
    STAGES,
    STEP_S,
    STRAIGHT,
    SYNCHRONISED,
    SYNCHRONISED_ROUTED,
    CandidateArrays,
    Split,
    beside_s,
    collective_of_s,
    following_s,
    least_over_splits_s,
)

_ROUNDING = 1e-12
"""Relative margin of a bound whose sums are in another order."""


@inlined
def _at_once_s(split: Split) -> float:
    """Bound the time of a batch over all splits by the stages' average, memory aside.

    It holds for interleaved stages too, whose last backward of the chunk that comes first follows
    all forwards and the backwards of all but p microbatches.
    """
    sums, whole, real = split.sums, split.whole, split.real
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    messages = stages * whole[CHUNKS] - 1
    forward_s = sums[FORWARD, layers] + messages * real[ACTIVATION_S]
    backward_s = sums[BACKWARD, layers] + messages * real[GRADIENT_S]
    saving_s = sums[ADDED, layers] * real[ACCUMULATION_S]
    once_s: float = forward_s + backward_s - saving_s
    work_s = busy_s(microbatches, forward_s + backward_s, saving_s)
    sent_s, share = real[MEAN_SYNCHRONISATION_S], real[SHARE]
    step_s = sums[OWN, layers] * real[STEP_S] / stages
    least_s: float = work_s / stages + share * sent_s
    if whole[SPLITS_BACKWARD] == IN_V:
        # When the gradients of the first chunk are complete depends on the order.
        return float(least_s + step_s)
    if whole[SPLITS_BACKWARD] == STRAIGHT:
        # Stages end one after another. The weight gradients of the last microbatch come last.
        least_s = max(least_s, (work_s - (1.0 - share) * backward_s) / stages + sent_s)
        return float(least_s + step_s)
    if whole[CHUNKS] > 1:
        before_s = max((microbatches - stages) * backward_s - saving_s, 0.0)
        before_s += microbatches * forward_s
        least_s = max(least_s, before_s / stages + sent_s)
        return float(max(once_s, least_s + step_s))
    alone_s = backward_s + sums[MORE_BACKWARD, layers]
    cover_s = beside_s(alone_s, split.links[BACKWARD, layers], split)
    least_s = max(least_s, (work_s - (1.0 - share) * cover_s) / stages + sent_s)
    again = forwards_again(stages, microbatches, whole[GPIPE] == 1)
    rounds_s = after_first_s(0.0, microbatches, again, forward_s, backward_s)
    through_s: float = once_s + rounds_s / stages
    through_s += following_s(0, 1, MOST_S, split)
    return float(max(least_s + step_s, through_s))


@callee("float64[:,::1](int64[::1], float64[::1], float64[::1])")
def _kinds(distinct: IntArray, own: FloatArray, added: FloatArray) -> FloatArray:
    """Return count, a layer, and the fewest parameters of every distinct layer, a row each.

    All that count once, and those that are added up beside the passes.
    """
    count = 0
    for kind in distinct:
        count = max(count, kind + 1)
    kinds = np.zeros((count, 4))
    for layer in range(len(distinct) - 1, -1, -1):
        kind = distinct[layer]
        least, least_added = own[layer], added[layer]
        if kinds[kind, 0] > 0.0:
            least, least_added = min(kinds[kind, 2], least), min(kinds[kind, 3], least_added)
        kinds[kind, 0] += 1.0
        kinds[kind, 1] = layer
        kinds[kind, 2] = least
        kinds[kind, 3] = least_added
    return kinds


@inlined
def _pipelined_s(split: Split, kinds: FloatArray, most: int) -> float:
    """Bound the time of a batch over all splits by what pipelines wait for.

    From (2) of `least_splits`, with q = 1 − 1/m: the first s stages have at most T·(1 − q^s)
    seconds of work, where T is less the first tail. From (3) and (4) for n layers, those that are
    repeated most: with a_s = (m − 1)·b + (m − h)·f of one such layer, stage s has at most (T − c −
    σ·x)/a_s of them, where the first one has x ≤ (T − c)/(a_1 + σ); c is one microbatch through all
    stages and the least tail, and σ what the tail grows by with each. They add up to n for no T
    below ``c + n / (W + max(0, 1 − σ·W)/(a_1 + σ))`` with W = Σ_{s>1} 1/a_s. And the largest share
    of these layers that a stage has bounds (1) and (4).
    """
    sums, links, lines, held, _, whole, real = split
    stages, microbatches, layers = whole[STAGES], whole[MICROBATCHES], sums.shape[1] - 1
    first_tail_s = following_s(0, 1, MOST_S, split)
    saving_s = sums[ADDED, layers] * real[ACCUMULATION_S]
    forward_s = sums[FORWARD, layers] + (stages - 1) * real[ACTIVATION_S]
    once_s = forward_s + sums[BACKWARD, layers] + (stages - 1) * real[GRADIENT_S]
    least_s: float = (once_s - saving_s / microbatches) / real[REACH] + first_tail_s
    once_s -= saving_s
    repeated = real[MOST_REPEATED]
    again = forwards_again(stages, microbatches, whole[GPIPE] == 1)
    layer = int(kinds[most, 1])
    forward = sums[FORWARD, layer + 1] - sums[FORWARD, layer]
    added = sums[ADDED, layer + 1] - sums[ADDED, layer]
    backward = sums[BACKWARD, layer + 1] - sums[BACKWARD, layer]
    backward -= (added - kinds[most, 3]) * real[ACCUMULATION_S]
    own, added = kinds[most, 2], kinds[most, 3]
    again_s = after_first_s(0.0, microbatches, again, forward, backward)
    least_s = max(least_s, once_s + repeated * again_s + first_tail_s)
    sent_s, routed = 0.0, held[ROUTED, layer, layer + 1]
    rows = whole[SYNCHRONISED], whole[SYNCHRONISED_ROUTED]
    if rows[0] >= 0:
        sent_s = collective_of_s(rows[0], rows[1], repeated * own, repeated * routed, lines)
        link_s = links[BACKWARD, layer + 1] - links[BACKWARD, layer]
        more_s = sums[MORE_BACKWARD, layer + 1] - sums[MORE_BACKWARD, layer]
        cover_s = repeated * beside_s(backward + more_s, link_s, split)
        sent_s = max(real[SHARE] * sent_s, sent_s - (1.0 - real[SHARE]) * cover_s)
    work_s = busy_s(microbatches, forward + backward, added * real[ACCUMULATION_S])
    least_s = max(least_s, repeated * (work_s + own * real[STEP_S]) + sent_s)
    if again_s > 0.0:
        in_flight = microbatches - again
        weight = (stages - in_flight) / again_s
        if in_flight > 1 and forward > 1e-9 * again_s:
            # The sum over h is at most the integral, and its last term.
            last_s = (microbatches - 1) * (backward + forward)
            weight += math.log(last_s / again_s) / forward
        else:
            weight += (in_flight - 1) / again_s
        count = kinds[most, 0]
        # A chord of the first stage's tail, which is concave: that of the first layer, and more
        # for every repeated one.
        each_s = own * real[STEP_S]
        if rows[0] >= 0:
            begin = begin_routed = 0.0
            if kinds[most, 1] > 0.0:
                begin, begin_routed = held[PARAMETERS, 0, 1], held[ROUTED, 0, 1]
            end, end_routed = begin + count * own, begin_routed + count * routed
            more_s = collective_of_s(rows[0], rows[1], end, end_routed, lines)
            more_s -= collective_of_s(rows[0], rows[1], begin, begin_routed, lines)
            each_s += real[SHARE] * more_s / count
        if kinds[most, 1] == 0.0:
            first_tail_s = 0.0
        others = weight + max(0.0, 1.0 - each_s * weight) / (again_s + each_s)
        least_s = max(least_s, once_s + first_tail_s + count / others)
    return least_s


@inlined
def _average(works: FloatArray, alone: float, work: FloatArray, sums: FloatArray) -> None:
    """Fill in the work of an average microbatch, of which a share is in no pair.

    And by how much the passes of those take longer.
    """
    for row in range(2):
        for layer in range(works.shape[1]):
            work[row, layer] = works[row, layer]
            if alone < 1.0:
                work[row, layer] *= alone
                work[row, layer] += (1.0 - alone) * works[row + 2, layer]
        more = row + MORE_FORWARD
        for layer in range(works.shape[1] - 1):
            own_s = works[row, layer + 1] - works[row, layer]
            mean_s = work[row, layer + 1] - work[row, layer]
            sums[more, layer + 1] = sums[more, layer] + max(own_s - mean_s, 0.0)


@inlined
def _sum_up(
    way: int,
    work: FloatArray,
    every_pass: FloatArray,
    group: int,
    real: FloatArray,
    links: FloatArray,
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
        sums[BACKWARD, layer] += real[ACCUMULATION_S] * sums[ADDED, layer]
    least_s = np.inf
    for end in range(sums.shape[1] - 1, 0, -1):
        own_s = sums[BACKWARD, end] - sums[BACKWARD, end - 1]
        least_s = min(least_s, own_s - (links[BACKWARD, end] - links[BACKWARD, end - 1]))
        if real[ALONE] < 1.0:
            least_s = 0.0  # that of a microbatch in no pair, which is not told apart here
        sums[LAST, end] = max(least_s, 0.0)


@lazily_compiled(
    "float64[::1](int64[::1], float64[:,:,::1], float64[:,::1], CandidateArrays, float64[::1],"
    " boolean)"
)
def least_times_s(
    distinct: IntArray,
    seconds: FloatArray,
    rates: FloatArray,
    candidates: CandidateArrays,
    known_s: FloatArray,
    splits: bool,
) -> FloatArray:
    """Bound the least time of a batch over all candidates and splits, of many accelerators.

    Parameters
    ----------
    distinct : (layers,)
        Which distinct layer each layer is.
    seconds : (accelerators, 4, distinct layers)
        Forward, and backward with recompute; then the same of microbatches in pairs.
    rates : (accelerators, 4)
        Seconds per parameter of the optimizer step and of accumulation, the share of a device's
        cores that communication takes, and seconds per parameter of the casts after the step.
    candidates
        Those that fit.
    known_s : (accelerators,)
        Times from which on the answer need not be exact.
    splits
        Whether to look at splits; without them the answer is smaller and comes sooner.

    Returns
    -------
    (accelerators,)
        Seconds, at most ``known_s``; infinite where nothing fits.
    """
    own, added, links, every_pass, lines, held, limit, whole, real = candidates
    accelerators, layers = seconds.shape[0], len(distinct)
    answers = known_s.copy()
    work, works = np.zeros((2, layers + 1)), np.zeros((4, layers + 1))
    sums = np.zeros((7, layers + 1))
    chosen, single = np.zeros(whole.shape[1], np.int64), np.zeros(real.shape[1])
    split = Split(sums, links, lines, held, limit, chosen, single)
    kinds = _kinds(distinct, own, added)
    most = 0
    for kind in range(len(kinds)):
        if kinds[kind, 0] > kinds[most, 0]:
            most = kind
    best = 0
    if len(whole) == 0:
        return answers
    for layer in range(layers):
        sums[OWN, layer + 1] = sums[OWN, layer] + own[layer]
        sums[ADDED, layer + 1] = sums[ADDED, layer] + added[layer]
    for a in range(accelerators):
        for layer in range(layers):
            for row in range(4):
                works[row, layer + 1] = works[row, layer] + seconds[a, row, distinct[layer]]
        repeated = distinct[int(kinds[most, 1])]
        of_most = seconds[a, :, repeated]
        # Whatever share of the microbatches is in pairs.
        all_s = min(works[0, layers] + works[1, layers], works[2, layers] + works[3, layers])
        most_s = min(of_most[0] + of_most[1], of_most[2] + of_most[3])
        first_best, summed_s, alone = best, -1.0, -1.0
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
            waits = whole[c, CHUNKS] == 1 and whole[c, SPLITS_BACKWARD] == 0
            share_s = all_s / whole[c, STAGES]
            if waits:
                share_s = max(share_s, real[c, MOST_REPEATED] * most_s)
            if whole[c, MICROBATCHES] * share_s >= answer_s:
                continue
            if whole[c, MICROBATCHES] * all_s / whole[c, STAGES] + sent_s >= answer_s:
                continue
            sent = whole[c, EVERY_PASS]
            if sent >= 0:
                queue_s = every_pass[sent, 0, layers] + every_pass[sent, 1, layers]
                share = rates[a, 2] if overlaps else 1.0
                pass_s = max(all_s + share * queue_s, share * all_s + queue_s) * (1.0 - _ROUNDING)
                if whole[c, MICROBATCHES] * pass_s / whole[c, STAGES] >= answer_s:
                    continue
            if real[c, ALONE] != alone:
                alone, summed_s = real[c, ALONE], -1.0
                _average(works, alone, work, sums)
            chosen[:], single[:] = whole[c], real[c]
            single[STEP_S] = rates[a, 0] / single[OPTIMIZER_SHARDS] + rates[a, 3]
            single[ACCUMULATION_S] = rates[a, 1] / single[GRADIENT_SHARDS] if several else 0.0
            single[SHARE] = rates[a, 2] if overlaps else 1.0
            ways = 4 if overlaps and sent >= 0 else 1
            # What ends the search over candidates bounds each of them, or it would not be monotone.
            least_s = (work[0, layers] + work[1, layers]) / single[REACH]
            for way in range(ways):
                if sent >= 0 or summed_s != single[ACCUMULATION_S]:
                    _sum_up(way, work, every_pass, sent, single, links, sums)
                    summed_s = single[ACCUMULATION_S] if sent < 0 else -1.0
                least_s = max(least_s, _at_once_s(split))
                if least_s >= answer_s:
                    break
                if waits:
                    more_s = _pipelined_s(split, kinds, most)
                    least_s = max(least_s, more_s)
                if splits and waits and least_s < answer_s:
                    least_s = least_over_splits_s(least_s, answer_s, split)
                if least_s >= answer_s:
                    break
            if least_s < answer_s:
                answers[a], best = least_s, c
    return answers

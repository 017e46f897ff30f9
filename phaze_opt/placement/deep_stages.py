"""What stages of a deep chain can hold, without a table of all of them.

A stage is a run of layers that fits the memory with the microbatches that it holds in flight, which
are more, the further it is from the end of the pipeline (`closed_form.held_at`). How much work a
run can have at most, by the microbatches in flight (`most_work_s`), bounds every split
(`least_rest_s`). A split whose fullest stage has the least work, or holds least, is found from the
end, each stage taking all that it may (`split_from_end`): none could leave less to those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import compiled_as, lazily_compiled
from phaze_opt.optimizers import Optimizer
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.placement.closed_form import after_first_s
from phaze_opt.placement.memory import with_stashes

_HALVINGS = 60


@compiled_as("float64[::1], float64[::1], float64[::1], float64[::1], float64[::1]")
class ChainSums(NamedTuple):
    """Sums over the layers of a chain before each and over all, and what each has for itself.

    Attributes
    ----------
    work_s, state_bytes, stash_bytes : (layers + 1,)
        Work of one microbatch; state of parameters, and frozen weights, that are not tied; stash of
        one microbatch.
    tied_bytes, transient_bytes : (layers,)
        State of the tied ones, which a stage has once; working sets.
    """

    work_s: FloatArray
    state_bytes: FloatArray
    stash_bytes: FloatArray
    tied_bytes: FloatArray
    transient_bytes: FloatArray

    @classmethod
    def of(cls, layers: Sequence[LayerCost], work_s: FloatArray, optimizer: Optimizer) -> ChainSums:
        """Add up layers with some work each, of which replicas share nothing out."""
        tied = np.array([layer.tied_parameters for layer in layers], dtype=np.float64)
        own = np.array([layer.parameters for layer in layers], dtype=np.float64) - tied
        frozen = np.array([layer.frozen_parameters for layer in layers], dtype=np.float64)
        frozen_tied = np.array([layer.frozen_tied_parameters for layer in layers], dtype=np.float64)
        wide = np.array([layer.wide_parameters for layer in layers], dtype=np.float64)
        wide_tied = np.array([layer.wide_tied_parameters for layer in layers], dtype=np.float64)
        weight_bytes, wide_bytes = optimizer.held_bytes[0], optimizer.wide_bytes
        some_bytes = (frozen - frozen_tied) * weight_bytes + (wide - wide_tied) * wide_bytes
        return cls(
            _sums(work_s),
            _sums(own * sum(optimizer.held_bytes) + some_bytes),
            _sums([layer.stash_bytes for layer in layers]),
            tied * sum(optimizer.held_bytes) + frozen_tied * weight_bytes + wide_tied * wide_bytes,
            np.array([layer.transient_bytes for layer in layers], dtype=np.float64),
        )

    def without_ends(self) -> ChainSums:
        """Return the sums of all layers but the first and the last."""
        return ChainSums(*[column[1:-1] for column in self])


def _sums(each: Sequence[float] | FloatArray) -> FloatArray:
    """Return the sums of the numbers before each, and of all."""
    return np.append(0.0, np.add.accumulate(np.asarray(each, dtype=np.float64)))


@lazily_compiled("float64[::1](ChainSums, float64, int64[::1])")
def most_work_s(sums: ChainSums, usable_bytes: float, held: IntArray) -> FloatArray:
    """Bound from above the work of one microbatch that a stage can have.

    Parameters
    ----------
    sums
        Of the layers that it may have.
    usable_bytes
        Memory of a stage.
    held
        Microbatches in flight, in any order.

    Returns
    -------
    work_s : (held,)
    """
    layers = len(sums.transient_bytes)
    most_s = np.zeros(len(held))
    for case in range(len(held)):
        j = 0
        for i in range(layers):
            j = max(i, j)
            while j < layers:
                # The largest of all may be another layer's: then the bound is looser.
                resident = sums.state_bytes[j + 1] - sums.state_bytes[i]
                resident += max(sums.tied_bytes[i], sums.tied_bytes[j])
                resident += max(sums.transient_bytes[i], sums.transient_bytes[j])
                stash = sums.stash_bytes[j + 1] - sums.stash_bytes[i]
                if with_stashes(resident, stash, held[case]) > usable_bytes:
                    break
                j += 1
            most_s[case] = max(most_s[case], sums.work_s[j] - sums.work_s[i])
    return most_s


@lazily_compiled("float64(float64[::1], int64[::1], int64, float64, float64)", allocates=False)
def least_rest_s(
    most_s: FloatArray, held: IntArray, microbatches: int, share: float, all_s: float
) -> float:
    """Bound from below what a batch takes beside the first microbatch's way through all stages.

    Of a batch that takes ``S + Y``, where S is the work of all layers for one microbatch, a stage
    with m microbatches, h of them in flight, and the forward and backward F + B = L has (paths (a),
    (b), (c) of `phaze_opt.placement.split_bounds` over all stages; without accumulation the first
    backward is as long as the others)

    - ``(m − 1)·B + (m − h)·F ≤ Y``, and the same with F and B changed;
    - ``(m − h)·L + Σ of the later stages' L ≤ Y`` where m > h;
    - of GPipe, where the last stage holds all of them too, ``(m − 1)·L ≤ Y``.

    So the last k stages together have at most a sum that grows with Y, stage by stage.

    Parameters
    ----------
    most_s : (stages + 1,)
        What a stage can have, see `most_work_s`, by its place from the end of the pipeline.
    held : (stages + 1,)
        Its microbatches in flight.
    microbatches
        m.
    share
        Of the work of every layer, forwards are at least as much, or backwards.
    all_s
        The work that all stages have together.

    Returns
    -------
    Endless where so many stages cannot have so much.
    """
    # Of a stage that holds all of them, as the weight of its L.
    share = 1.0 if held[1] > 1 else share
    low_s, high_s = 0.0, microbatches * all_s
    for halving in range(_HALVINGS + 1):
        rest_s = 0.5 * (low_s + high_s) if halving > 0 else high_s
        sum_s = 0.0
        for place in range(1, len(held)):
            left = microbatches - held[place]
            here_s = most_s[place]
            weight = after_first_s(0.0, microbatches, left, 1.0 - share, share)
            if weight > 0.0:
                here_s = min(here_s, rest_s / weight)
            if left > 0:
                here_s = min(here_s, max(0.0, rest_s - sum_s) / left)
            sum_s += here_s
        if sum_s >= all_s:
            high_s = rest_s
        elif halving == 0:
            return np.inf
        else:
            low_s = rest_s
    return low_s


@lazily_compiled("int64[::1](ChainSums, float64, int64[::1], float64)")
def split_from_end(sums: ChainSums, usable_bytes: float, held: IntArray, most_s: float) -> IntArray:
    """Split a chain into stages of as many layers as they may have, the last stage first.

    Parameters
    ----------
    sums, usable_bytes, held
        See `least_rest_s`.
    most_s
        No stage has more work for one microbatch.

    Returns
    -------
    starts
        First layers of the stages; empty where so many stages cannot have all layers.
    """
    starts = np.zeros(len(held) - 1, dtype=np.int64)
    end = len(sums.transient_bytes)
    for place in range(1, len(held)):
        i, tied, transient = end, 0.0, 0.0
        while i > 0:
            tied = max(tied, sums.tied_bytes[i - 1])
            transient = max(transient, sums.transient_bytes[i - 1])
            resident = sums.state_bytes[end] - sums.state_bytes[i - 1] + tied + transient
            stash = sums.stash_bytes[end] - sums.stash_bytes[i - 1]
            if with_stashes(resident, stash, held[place]) > usable_bytes:
                break
            if sums.work_s[end] - sums.work_s[i - 1] > most_s:
                break
            i -= 1
        if i == end:
            break
        starts[place - 1], end = i, i
        if end == 0:
            return starts[:place][::-1].copy()
    return starts[:0]


def least_loaded(sums: ChainSums, usable_bytes: float, held: IntArray) -> IntArray | None:
    """Return a split that fits and whose fullest stage has the least work; ``None`` if none fits.

    Parameters
    ----------
    sums, usable_bytes, held
        See `least_rest_s`.
    """
    return _least(
        lambda most_s: split_from_end(sums, usable_bytes, held, most_s),
        lambda starts: float(np.diff(sums.work_s[np.append(starts, -1)]).max()),
    )


def tightest(sums: ChainSums, held: IntArray) -> tuple[float, IntArray]:
    """Return the split whose fullest stage holds least, and what that holds, in bytes.

    Parameters
    ----------
    sums, held
        See `least_rest_s`.
    """

    def need_bytes(starts: IntArray) -> float:
        ends = np.append(starts[1:], len(sums.transient_bytes))
        resident = sums.state_bytes[ends] - sums.state_bytes[starts]
        for largest in sums.tied_bytes, sums.transient_bytes:
            resident += np.maximum.reduceat(largest, starts)
        stashes = sums.stash_bytes[ends] - sums.stash_bytes[starts]
        return float(with_stashes(resident, stashes, held[len(starts) : 0 : -1]).max())

    starts = _least(lambda most: split_from_end(sums, most, held, np.inf), need_bytes)
    assert starts is not None, "without a limit every split fits"
    return need_bytes(starts), starts


def _least(
    split: Callable[[float], IntArray], most_of: Callable[[IntArray], float]
) -> IntArray | None:
    """Return the split with the least largest number of a stage; ``None`` if there is none.

    Parameters
    ----------
    split
        Returns a split of which no stage has more than a number, or nothing.
    most_of
        Returns the largest number of a split.
    """
    best = split(np.inf)
    if not len(best):
        return None
    low, high = 0.0, most_of(best)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        starts = split(middle)
        if len(starts):
            best, high = starts, most_of(starts)
        else:
            low = middle
    return best

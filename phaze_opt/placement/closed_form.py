"""Pipelines in closed form: what a stage holds, and the sums that times and bounds are made of.

Numbers or arrays, in plain Python or inlined into a compiled loop. A batch has m microbatches; of
a stage, h is what it holds, F and B its forward and backward, and L = F + B its load.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined

Count = TypeVar("Count", int, IntArray)
Seconds = TypeVar("Seconds", float, FloatArray)


@inlined
def held_at(place: Count, microbatches: int, all_held: bool) -> Count | int:
    """Return h by the place from the end: under 1F1B, as many as there are stages from there on.

    Under GPipe (``all_held``) every stage holds all microbatches.
    """
    return microbatches if all_held else np.minimum(place, microbatches)


@inlined
def forwards_again(place: int, microbatches: int, all_held: bool) -> int:
    """Return how many forwards of a stage the way of one microbatch through all stages leaves out.

    Under 1F1B the m − h after its first backward; under GPipe all but one, before it.
    """
    return microbatches - held_at(1 if all_held else place, microbatches, False)


@inlined
def pipelined_s(microbatches: float, largest_s: Seconds, total_s: Seconds) -> Seconds:
    """Return ``(m − 1) · max L + Σ L``, the time of a batch but for what comes first and last."""
    return (microbatches - 1) * largest_s + total_s


@inlined
def busy_s(microbatches: int, load_s: Seconds, saving_s: Seconds) -> Seconds:
    """Return a stage's work of a batch: the first backward has no gradients to add to others."""
    return microbatches * load_s - saving_s


@inlined
def after_first_s(
    first_s: float, microbatches: int, again: int, forward_s: float, backward_s: float
) -> float:
    """Return when a stage ends at the earliest that has ended its first backward.

    All other backwards are left, and the forwards of `forwards_again`.
    """
    return first_s + (microbatches - 1) * backward_s + again * forward_s


def even_share(
    microbatches: int | IntArray | FloatArray, stages: int | IntArray, chunks: int = 1
) -> FloatArray:
    """Return the most of the time of a batch that all layers together take for one microbatch.

    A stage cannot start before the first microbatch has passed those before it: with p stages,
    ``T ≥ Σ_{j<s} L_j + m · L_s`` for every stage s, so that ``Σ L ≤ (1 − (1 − 1/m)^p) · T``. Of
    interleaved stages only ``T ≥ m · L_s`` is known, and that a microbatch passes all of them.
    """
    if chunks > 1:
        return np.asarray(np.minimum(1.0, stages / microbatches))
    return np.asarray(1.0 - (1.0 - 1.0 / microbatches) ** stages)

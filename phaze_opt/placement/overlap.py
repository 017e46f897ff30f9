"""Queues of data-parallel communication that run beside the compute of a stage.

A stage works through its layers: forwards from the first to the last, backwards from the last to
the first. Beside it one queue on the network level serves transfers in order, one at a time:

* weights are gathered ahead of use, so a layer starts when its own have come (FSDP, ZeRO 3; after
  an optimizer step also ZeRO 1 and 2);
* gradients are sent once the backward of their layer is done (Megatron-Core's
  ``overlap_grad_reduce``, PyTorch DDP and FSDP). Where weights are gathered for the backward too,
  those transfers are older and go first.

While the tensor-parallel group uses the same level, the queue stands still. A layer therefore
*covers* only its seconds less those of its own transfers there.

Times are of every run of consecutive layers at once: arrays are indexed ``[i, j]`` for the layers
``i … j − 1``, of shape ``(layers, layers + 1)``; entries with ``i ≥ j`` mean nothing.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.compiled import inlined, lazily_compiled

Seconds = TypeVar("Seconds", float, FloatArray)


@inlined
def charged_s(exposed_s: Seconds, hidden_s: Seconds, core_share: float) -> Seconds:
    """Return by how much communication makes compute longer: what is hidden takes cores too."""
    return exposed_s + core_share * hidden_s


@lazily_compiled("UniTuple(float64[:,::1], 2)(float64[::1], float64[::1])")
def forward_queue_s(gather_s: FloatArray, cover_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how long the forward of each run of layers waits for gathered weights.

    All gathers of the run are asked for at its start; the wait is the largest amount by which the
    gathers up to a layer exceed what the layers before it cover.

    Parameters
    ----------
    gather_s, cover_s : (layers,)
        Seconds of each layer's gather; seconds that its forward covers.

    Returns
    -------
    wait_s, total_s : (layers, layers + 1)
        The wait, and the seconds of all gathers.
    """
    layers = len(gather_s)
    wait_s = np.zeros((layers, layers + 1))
    total_s = np.zeros((layers, layers + 1))
    for i in range(layers):
        served, covered, longest = 0.0, 0.0, 0.0
        for last in range(i, layers):
            served += gather_s[last]
            longest = max(longest, served - covered)
            covered += cover_s[last]
            wait_s[i, last + 1] = longest
            total_s[i, last + 1] = served
    return wait_s, total_s


@lazily_compiled(
    "UniTuple(float64[:,::1], 4)(float64[::1], float64[::1], float64[::1])",
)
def backward_queue_s(
    gather_s: FloatArray, reduce_s: FloatArray, cover_s: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return how long the backward of each run waits for weights, and what is left when it is done.

    Parameters
    ----------
    gather_s, reduce_s, cover_s : (layers,)
        Seconds of each layer's gather, of the transfer of its gradients, and that its backward
        covers.

    Returns
    -------
    wait_s, left_s, gathers_s, reductions_s : (layers, layers + 1)
        Seconds that the compute waits for gathers; seconds that the queue still takes after the
        last layer; seconds of all gathers, and of all transfers of gradients.
    """
    layers = len(gather_s)
    wait_s = np.zeros((layers, layers + 1))
    left_s = np.zeros((layers, layers + 1))
    gathers_s = np.zeros((layers, layers + 1))
    reductions_s = np.zeros((layers, layers + 1))
    for j in range(1, layers + 1):
        gathers, reductions, covered, longest, reduced = 0.0, 0.0, 0.0, 0.0, 0.0
        for first in range(j - 1, -1, -1):
            gathers += gather_s[first]
            reductions += reduce_s[first]
            longest = max(longest, gathers - covered)
            covered += cover_s[first]
            # Times in which the queue could run: the compute is done after this one.
            done = longest + covered
            reduced = max(reduced, done) + reduce_s[first]
            wait_s[first, j] = longest
            left_s[first, j] = max(reduced, gathers + reductions) - done
            gathers_s[first, j] = gathers
            reductions_s[first, j] = reductions
    return wait_s, left_s, gathers_s, reductions_s


def left_after_s(service_s: FloatArray, until_end_s: FloatArray, free_share: float) -> float:
    """Return what a queue has left when the compute of several chunks is done.

    Parameters
    ----------
    service_s, until_end_s : (transfers,)
        Seconds of each transfer, and between the moment when it can start and the end of the
        compute.
    free_share
        Share of the compute's time in which the queue may run.
    """
    order = np.argsort(-until_end_s, kind="stable")
    behind_s = np.cumsum(service_s[order][::-1])[::-1]
    return float(np.max(behind_s - free_share * until_end_s[order], initial=0.0))

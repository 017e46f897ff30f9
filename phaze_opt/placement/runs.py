"""Sums and maxima over all runs of consecutive layers, and what runs receive and do as stages.

Results have the shape ``(layers, layers + 1)``: ``[i, j]`` is of the layers ``i … j − 1``, and 0
where there are none. Each is added up from its first layer, so equal runs have equal sums.
"""

from __future__ import annotations

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled


@lazily_compiled("float64[:,::1](float64[::1])")
def sums_of_runs(values: FloatArray) -> FloatArray:
    """Sum all runs of n values; entry [i, j] of n × (n + 1) is that of values i to j - 1."""
    count = len(values)
    result = np.zeros((count, count + 1))
    for i in range(count):
        for j in range(i, count):
            result[i, j + 1] = result[i, j] + values[j]
    return result


@lazily_compiled("float64[:,::1](float64[::1])")
def maxima_of_runs(values: FloatArray) -> FloatArray:
    """Take the largest of all runs, as `sums_of_runs`, of values that are not negative."""
    count = len(values)
    result = np.zeros((count, count + 1))
    for i in range(count):
        for j in range(i, count):
            result[i, j + 1] = max(result[i, j], values[j])
    return result


@lazily_compiled(
    "float64[:,::1](float64[::1], float64[::1], float64[::1], float64[:,::1], float64,"
    " float64[:,::1], float64[:,::1])"
)
def loads_of_runs(
    forward_s: FloatArray,
    backward_s: FloatArray,
    recompute_s: FloatArray,
    parameters: FloatArray,
    accumulation_s_per_parameter: float,
    activation_s: FloatArray,
    gradient_s: FloatArray,
) -> FloatArray:
    """Add up what runs of layers do as stages in one microbatch.

    Parameters
    ----------
    forward_s, backward_s, recompute_s : (layers,)
        Work of each layer.
    parameters, activation_s, gradient_s : (layers, layers + 1)
        What each run holds, and receives.
    accumulation_s_per_parameter
        Adding up gradients.
    """
    count = len(forward_s)
    load_s = np.zeros((count, count + 1))
    for i in range(count):
        forward = backward = recompute = 0.0
        for j in range(i, count):
            forward += forward_s[j]
            backward += backward_s[j]
            recompute += recompute_s[j]
            accumulation = parameters[i, j + 1] * accumulation_s_per_parameter
            after = backward + recompute + accumulation + gradient_s[i, j + 1]
            load_s[i, j + 1] = forward + activation_s[i, j + 1] + after
    return load_s


@lazily_compiled(
    "UniTuple(float64[:,::1], 3)(int64, int64[::1], int64[::1], int64[::1], float64[::1],"
    " float64[::1], boolean[::1])"
)
def receives_of_runs(
    count: int,
    sources: IntArray,
    first_consumer: IntArray,
    consumers: IntArray,
    message_s: FloatArray,
    sent_bytes: FloatArray,
    returns: BoolArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Add up the messages of all runs of layers as stages.

    Parameters
    ----------
    count
        Number of layers.
    sources : (sources,)
        Layers whose outputs others take.
    first_consumer : (sources + 1,)
        Where the consumers of each begin in `consumers`, and where the last ones end.
    consumers : (edges,)
        Layers that take the outputs.
    message_s, sent_bytes : (sources,)
        One message with the output of each source, or with its gradient.
    returns : (sources,)
        Whether the gradient comes back: not where nothing up to the source is trained.

    Returns
    -------
    activation_s, gradient_s, transfer_bytes
        Receiving activations, receiving gradients, and the bytes of both.
    """
    activation_s = np.zeros((count, count + 1))
    gradient_s = np.zeros((count, count + 1))
    transfer_bytes = np.zeros((count, count + 1))
    for k in range(len(sources)):
        source = sources[k]
        taken_by = consumers[first_consumer[k] : first_consumer[k + 1]]
        last = source
        for consumer in taken_by:
            last = max(last, consumer)
        # A stage that starts after the source receives it if it reaches the next consumer.
        for start in range(source + 1, last + 1):
            nearest = last
            for consumer in taken_by:
                if start <= consumer < nearest:
                    nearest = consumer
            activation_s[start, nearest + 1 :] += message_s[k]
            transfer_bytes[start, nearest + 1 :] += sent_bytes[k]
        # The gradient comes back unless all consumers are in the source's own stage.
        if returns[k]:
            gradient_s[: source + 1, source + 1 : last + 1] += message_s[k]
            transfer_bytes[: source + 1, source + 1 : last + 1] += sent_bytes[k]
    return activation_s, gradient_s, transfer_bytes

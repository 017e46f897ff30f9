"""Even splits: the same number of layers on every stage, as people place models by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import lazily_compiled
from phaze_opt.placement.placement_problem import LayerCost


def even_starts(layers: Sequence[LayerCost], stages: int) -> IntArray:
    """Return the first layer of every stage of an even split.

    The repeated layers (the longest run of equal ones) are divided by count, the earliest stages
    taking one more where it does not come out even; what is before and after them (embedding,
    head) stays on the first and the last stage. Where there are fewer repeated layers than
    stages, all layers are divided.

    Parameters
    ----------
    layers
        Of the model.
    stages
        At most the number of layers.
    """
    return _divide(longest_run(layers), len(layers), stages)


def all_even_starts(layers: Sequence[LayerCost]) -> IntArray:
    """Return the same for every number of stages.

    Returns
    -------
    (layers + 1, layers)
        The row of so many stages holds their first layers, then zeros; row 0 is no split.
    """
    return _all_starts(longest_run(layers), len(layers))


@lru_cache(maxsize=64)
def _all_starts(run: tuple[int, int], count: int) -> IntArray:
    """Split so many layers, of which a run is equal, evenly into every number of stages, cached."""
    starts = np.zeros((count + 1, count), dtype=np.int64)
    for stages in range(1, count + 1):
        starts[stages, :stages] = _divide(run, count, stages)
    return starts


def _divide(run: tuple[int, int], layers: int, stages: int) -> IntArray:
    """Split the longest run of equal layers evenly, or all layers where it is too short."""
    start, count = run if run[1] >= stages else (0, layers)
    share, extra = divmod(count, stages)
    sizes = np.full(stages, share, dtype=np.int64)
    sizes[:extra] += 1
    starts = np.zeros(stages, dtype=np.int64)
    starts[1:] = start + np.cumsum(sizes)[:-1]
    return starts


def longest_run(layers: Sequence[LayerCost]) -> tuple[int, int]:
    """Return start and length of the longest run of layers that cost the same."""
    best_start, best_count, start = 0, 0, 0
    costs = [_cost(layer) for layer in layers]
    for index, cost in enumerate(costs):
        if cost != costs[start]:
            start = index
        if index - start + 1 > best_count:
            best_start, best_count = start, index - start + 1
    return best_start, best_count


def _cost(layer: LayerCost) -> tuple[float, ...]:
    """Return what makes two layers the same kind."""
    return (
        layer.forward_s,
        layer.backward_s,
        layer.parameters,
        layer.stash_bytes,
        layer.transient_bytes,
        layer.output_bytes,
    )


@lazily_compiled(
    "float64[::1](float64[:,::1], float64[:,::1], float64, int64[:,::1], int64[:,::1], int64[::1],"
    " int64[::1], boolean)"
)
def replay_bounds(
    load_s: FloatArray,
    parameters: FloatArray,
    saving_s_per_parameter: float,
    in_flight_limit: IntArray,
    starts: IntArray,
    pipeline: IntArray,
    microbatches: IntArray,
    all_in_flight: bool,
) -> FloatArray:
    """Bound the replayed time of given splits from below; infinite where one does not fit.

    A stage cannot start before the first microbatch has passed those before it, nor be followed by
    less than its backward through them: ``T ≥ Σ_{j<s} L_j + m · L_s`` for every stage s, less what
    its first backward is shorter.

    Parameters
    ----------
    load_s, parameters, in_flight_limit : (layers, layers + 1)
        Of every stage.
    saving_s_per_parameter
        By how much the first backward is shorter.
    starts : (layers + 1, layers)
        First layers of the split into so many stages (row), the rest of the row unused.
    pipeline, microbatches : (candidates,)
        Stages and microbatches of each candidate.
    all_in_flight
        Whether every stage holds all microbatches (GPipe).
    """
    layers = load_s.shape[0]
    bounds = np.zeros(len(pipeline))
    for index in range(len(pipeline)):
        stages = pipeline[index]
        before = 0.0
        for stage in range(stages):
            i = starts[stages, stage]
            j = starts[stages, stage + 1] if stage + 1 < stages else layers
            held = microbatches[index] if all_in_flight else stages - stage
            if in_flight_limit[i, j] < min(held, microbatches[index]):
                bounds[index] = np.inf
                break
            saving = parameters[i, j] * saving_s_per_parameter
            own = microbatches[index] * load_s[i, j] - saving
            bounds[index] = max(bounds[index], before + own)
            before += load_s[i, j]
    return bounds

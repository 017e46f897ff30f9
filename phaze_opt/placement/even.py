"""Even splits: the same number of layers on every stage, as people place models by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.compiled import inlined, lazily_compiled
from phaze_opt.passes.layer_cost import LayerCost
from phaze_opt.placement.chain_bounds import Classes
from phaze_opt.placement.closed_form import after_first_s, busy_s, held_at
from phaze_opt.placement.placement_problem import Kinds


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


def all_even_starts(layers: Sequence[LayerCost], kinds: Kinds) -> IntArray:
    """Return the same for every number of stages.

    Parameters
    ----------
    layers
        Of the model.
    kinds
        Which of them are known to be alike; others may be too.

    Returns
    -------
    (layers + 1, layers)
        The row of so many stages holds their first layers, then zeros; row 0 is no split.
    """
    numbers: dict[tuple[float, ...], int] = {}
    costs = _costs([layers[index] for index in kinds.first])
    alike = [numbers.setdefault(cost, len(numbers)) for cost in costs]
    return _all_starts(tuple(np.array(alike)[kinds.which].tolist()))


@lru_cache(maxsize=64)
def _all_starts(costs: tuple[int, ...]) -> IntArray:
    """Split layers of some costs evenly into every number of stages, cached."""
    run, count = _longest_run(costs), len(costs)
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
    return _longest_run(_costs(layers))


def _longest_run(costs: Sequence[object]) -> tuple[int, int]:
    """Return start and length of the longest run of equal costs."""
    best_start, best_count, start = 0, 0, 0
    for index, cost in enumerate(costs):
        if cost != costs[start]:
            start = index
        if index - start + 1 > best_count:
            best_start, best_count = start, index - start + 1
    return best_start, best_count


def _costs(layers: Sequence[LayerCost]) -> list[tuple[float, ...]]:
    """Return what makes layers the same kind.

    Of a partly frozen model it is their size: people divide its blocks as if all were trained.
    """
    if any(layer.frozen_parameters for layer in layers):
        return [(each.parameters + each.frozen_parameters, each.output_bytes) for each in layers]
    return list(map(_cost, layers))


def _cost(layer: LayerCost) -> tuple[float, ...]:
    """Return what makes two layers the same kind."""
    return (
        layer.passes.forward.seconds,
        layer.passes.backward.seconds,
        layer.paired_s,
        layer.parameters,
        layer.accumulated_parameters,
        layer.stash_bytes,
        layer.transient_bytes,
        layer.output_bytes,
    )


@inlined
def _stage(starts: IntArray, stages: int, stage: int) -> tuple[int, int]:
    """Return the first layer of a stage, and the one after its last."""
    end = starts[stages, stage + 1] if stage + 1 < stages else starts.shape[1]
    return starts[stages, stage], end


@inlined
def _fits(
    in_flight_limit: IntArray, starts: IntArray, stages: int, microbatches: int, all_in_flight: bool
) -> bool:
    """Say whether every stage of a split can hold what it has in flight."""
    for stage in range(stages):
        i, j = _stage(starts, stages, stage)
        if in_flight_limit[i, j] < held_at(stages - stage, microbatches, all_in_flight):
            return False
    return True


@lazily_compiled(
    "float64[::1](float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1], float64[:,::1],"
    " int64[:,::1], int64[:,::1], int64, int64, Classes)"
)
def least_split_times(
    forward_s: FloatArray,
    backward_s: FloatArray,
    weight_s: FloatArray,
    added_s: FloatArray,
    stash_bytes: FloatArray,
    in_flight_limit: IntArray,
    starts: IntArray,
    stashes: int,
    less: int,
    classes: Classes,
) -> FloatArray:
    """Bound the time of many candidates' even splits under split backwards (F, B and W) from below.

    Of its own time a stage has the first microbatch go through all stages after it and back, in
    which it does at most as many F as it has room for, and no more than that one's B; all else it
    does later. Or it does nothing but its work. After that of the first stage comes its tail.

    Parameters
    ----------
    forward_s, backward_s, weight_s, added_s, stash_bytes, in_flight_limit : (layers, layers + 1)
        Of every stage; ``added_s`` is the part of a W that the first microbatch leaves out.
    starts : (layers + 1, layers)
        First layers of the split into so many stages (row), the rest of the row unused.
    stashes, less
        See `phaze_opt.placement.zero_bubble.STASHES`.
    classes
        The candidates.

    Returns
    -------
    time_s : (candidates,)
        Infinite where a stage does not fit under 1F1B.
    """
    tails_s, rows, pipeline, microbatches, _, _, _ = classes
    time_s = np.full(len(pipeline), np.inf)
    for index in range(len(pipeline)):
        stages, rounds = pipeline[index], microbatches[index]
        if not _fits(in_flight_limit, starts, stages, rounds, False):
            continue
        room = 0.0
        for stage in range(min(2, stages)):
            i, j = _stage(starts, stages, stage)
            room = max(room, stash_bytes[i, j])
        room *= stashes * stages - less
        least_s = through_s = 0.0
        for stage in range(stages - 1, -1, -1):
            i, j = _stage(starts, stages, stage)
            forward, backward = forward_s[i, j], backward_s[i, j]
            through_s += forward + backward
            again = 0
            if stash_bytes[i, j] > 0.0:
                ahead = int(room / stash_bytes[i, j] * (1.0 + 1e-9))
                again = max(rounds - max(ahead, held_at(stages - stage, rounds, False)), 0)
            own_s = after_first_s(through_s, rounds, again, forward, backward)
            own_s = max(own_s, rounds * (forward + backward))
            own_s += busy_s(rounds, weight_s[i, j] + added_s[i, j], added_s[i, j])
            if stage == 0:
                own_s += tails_s[rows[index], j - 1]
            least_s = max(least_s, own_s)
        time_s[index] = least_s
    return time_s


@lazily_compiled(
    "float64[::1](float64[:,::1], float64[:,::1], float64, int64[:,::1], int64[:,::1], Classes)"
)
def least_even_times(
    load_s: FloatArray,
    parameters: FloatArray,
    saving_s_per_parameter: float,
    in_flight_limit: IntArray,
    starts: IntArray,
    classes: Classes,
) -> FloatArray:
    """Bound the replayed time of many candidates' even splits from below.

    A stage cannot start before the first microbatch has passed those before it, nor be followed by
    less than its backward through them: ``T ≥ Σ_{j<s} L_j + m · L_s`` for every stage s, less what
    its first backward is shorter; after it comes the tail of the first stage.

    Parameters
    ----------
    load_s, parameters, in_flight_limit : (layers, layers + 1)
        Of every stage.
    saving_s_per_parameter
        By how much the first backward is shorter.
    starts : (layers + 1, layers)
        First layers of the split into so many stages (row), the rest of the row unused.
    classes
        The candidates.

    Returns
    -------
    time_s : (candidates,)
        Infinite where a stage does not fit.
    """
    tails_s, rows, pipeline, microbatches, _, all_s, all_held = classes
    time_s = np.full(len(pipeline), np.inf)
    # Where there are no fewer microbatches than stages, what is held depends on the stages alone.
    fits = np.zeros(starts.shape[0], np.bool_)
    for stages in range(1, starts.shape[0]):
        fits[stages] = _fits(in_flight_limit, starts, stages, stages, False)
    for index in range(len(pipeline)):
        stages, rounds = pipeline[index], microbatches[index]
        if all_held or rounds < stages:
            if not _fits(in_flight_limit, starts, stages, rounds, all_held):
                continue
        elif not fits[stages]:
            continue
        before_s, least_s = 0.0, rounds * all_s[index] / stages
        for stage in range(stages):
            i, j = _stage(starts, stages, stage)
            saving_s = parameters[i, j] * saving_s_per_parameter
            least_s = max(least_s, before_s + busy_s(rounds, load_s[i, j], saving_s))
            before_s += load_s[i, j]
        _, first_end = _stage(starts, stages, 0)
        time_s[index] = least_s + tails_s[rows[index], first_end - 1]
    return time_s

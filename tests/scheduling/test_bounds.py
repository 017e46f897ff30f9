from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.scheduling.bounds import (
    drop_hopeless_modes,
    mixed_bound,
    mixed_rate,
    runs_alone,
    tails,
)
from phaze_opt.scheduling.instance import Instance, proving_bound
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from tests.scheduling.strategies import bounds_and_list, improve, layer_like, problems, to_instance


@settings(max_examples=40, deadline=None)
@given(problem=problems(most=8))
def test_bounds_optimum_and_list_schedule_in_order(problem: ScheduleProblem) -> None:
    """Every lower bound <= the optimum <= the list schedule."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    assume(len(instance.capacity))  # else everything starts as early as its predecessors let it
    bounds, listed = bounds_and_list(instance)
    best, proven = improve(instance, bounds, listed, effort=100_000)
    assert proving_bound(best.makespan) <= proven
    assert bounds.makespan <= best.makespan <= listed.makespan
    assert mixed_bound(instance)[0] <= best.makespan


@pytest.mark.parametrize("seed", range(6))
def test_hopeless_modes_are_never_needed(seed: int) -> None:
    """Dropping modes on paths of at least a makespan keeps every schedule shorter than it."""
    instance = to_instance(layer_like(seed, 30, 3))
    bounds, listed = bounds_and_list(instance)
    optimum, _ = improve(instance, bounds, listed, effort=500_000)
    fewer = replace(instance, allowed=instance.allowed.copy())
    upper = optimum.makespan + 1
    drop_hopeless_modes(fewer.duration, fewer.allowed, fewer.ancestors, bounds.tail, upper)
    assert not (fewer.allowed & ~instance.allowed).any()
    again, proven = improve(fewer, bounds_and_list(fewer)[0], listed, effort=500_000)
    assert proving_bound(again.makespan) <= proven
    assert again.makespan == pytest.approx(optimum.makespan, rel=1e-9)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
def test_mixture_is_at_least_its_parts(rule: str) -> None:
    """On a wide layer the mixed bound is at least 0.99 of the best bound of one resource."""
    instance = to_instance(layer_like(5, 60, 6, intra_operator=rule))
    assert mixed_bound(instance)[0] >= 0.99 * bounds_and_list(instance)[0].makespan


@pytest.mark.parametrize("seed", range(12))
def test_the_mixture_equals_its_definition(seed: int) -> None:
    """Compiled loops give what NumPy's sums do, which may round otherwise, in any order of rows."""
    instance = to_instance(layer_like(seed, 10 + 3 * seed, 2 + seed % 5))
    duration, share = instance.duration.astype(float), instance.demand / instance.capacity
    alone = runs_alone(instance.allowed, instance.demand, instance.capacity)
    rate = mixed_rate(duration, instance.allowed, share, alone, instance.ancestors)
    assert rate == pytest.approx(defined_rate(instance, share, alone), rel=1e-9)


def defined_rate(instance: Instance, share: FloatArray, alone: BoolArray) -> FloatArray:
    """Mix resources and chains row by row."""
    duration = instance.duration.astype(float)
    forbidden = np.where(instance.allowed, 0.0, np.inf)
    rows = list(np.moveaxis(share, 2, 0))
    best, best_weights = -1.0, np.full(len(rows), 1.0 / len(rows))
    intra = ((duration + forbidden).argmin(axis=1) == 1).astype(float)
    for _ in range(8):
        chosen = np.where(alone, 0.0, duration)
        through = (1 - intra) * chosen[:, 0] + intra * chosen[:, 1]
        row = alone.astype(float)
        row[longest_chain(instance.ancestors, through)] = 1.0
        if any(np.array_equal(row, known) for known in rows):
            break
        rows.append(row)
        weights = np.append(best_weights * 0.8, 0.2)
        value, weights, intra = reweighed(np.array(rows) * duration, weights, forbidden)
        best_weights = weights if value > best else np.append(best_weights, 0.0)
        best = max(best, value)
    rate: FloatArray = np.tensordot(best_weights, np.array(rows[: len(best_weights)]), axes=1)
    return rate


def longest_chain(ancestors: IntArray, duration: FloatArray) -> list[int]:
    """Return the longest path; of equal ones that over the operators that come first."""
    sets = [sum(int(word) << 64 * k for k, word in enumerate(words)) for words in ancestors]
    before = [[j for j in range(i) if sets[i] >> j & 1] for i in range(len(duration))]
    paths: list[list[int]] = []
    for i, all_before in enumerate(before):
        direct = [j for j in all_before if not any(j in before[k] for k in all_before)]
        longer = [paths[j] for j in direct if duration[paths[j]].sum() > 0.0]
        paths.append([*max(longer, key=lambda path: duration[path].sum(), default=[]), i])
    return max(paths, key=lambda path: duration[path].sum())


def reweighed(
    cost: FloatArray, weights: FloatArray, forbidden: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Move weight towards the largest load, with NumPy."""
    best, best_weights, often = -1.0, weights, np.zeros(cost.shape[1])
    for step in range(60):
        weighted = np.tensordot(weights, cost, axes=1) + forbidden
        on_all = (weighted[:, 1] < weighted[:, 0]).astype(float)
        load = (cost[:, :, 0] + on_all * (cost[:, :, 1] - cost[:, :, 0])).sum(axis=1)
        if (value := float(weights @ load)) > best:
            best, best_weights = value, weights
        often += on_all
        slack = load.max() - load
        if slack.max() <= 0.0:
            break
        weights = weights * np.exp(-slack / slack.max() * 3.0 / np.sqrt(step + 4.0))
        weights = weights / weights.sum()
    return best, best_weights, often / (step + 1)


@given(duration=st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_tails_of_a_chain(duration: list[int]) -> None:
    """In a chain, an operator's tail is the sum of the durations from it to the end."""
    after = np.array([[6], [4], [0]])
    assert tails(after, np.array(duration)).tolist() == [sum(duration[i:]) for i in range(3)]

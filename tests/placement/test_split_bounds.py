"""What bounds the splits of a chain is never above what the event replay finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phaze_opt.arrays import FloatArray, IntArray
from phaze_opt.choices import PipelineScheduleName
from phaze_opt.compiled import lazily_compiled
from phaze_opt.placement.pipeline import PipelineWork, finish_s, held_by_place
from phaze_opt.placement.split_bounds import (
    FRONT,
    SplitWork,
    bound_s,
    empty_front,
    extend,
    least_of_rest,
)
from phaze_opt.placement.split_search import least_replays, search_splits
from tests.placement.strategies import all_splits

ROUNDED = 1.0 + 1e-12


class Tables:
    """Random work, heads, tails and memory of every run of a few layers."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.count = int(random.integers(1, 8))
        self.stages = int(random.integers(1, self.count + 1))
        self.microbatches = int(random.integers(1, 12))
        self.schedule: PipelineScheduleName = "gpipe" if random.random() < 0.3 else "1f1b"
        shape = self.count, self.count + 1
        layers = random.choice([0.1, 1.0, 1.0, 1.5, 4.0], (3, self.count))
        messages = random.choice([0.0, 0.2], (2, *shape))
        lengths = [np.cumsum(np.triu(np.tile(each, (self.count, 1))), axis=1) for each in layers]
        runs = np.zeros((3, *shape))
        runs[:, :, 1:] = lengths
        self.forward_s = runs[0] + messages[0]
        self.parameters = runs[2]
        self.saving_s = float(random.choice([0.0, 0.3])) if self.microbatches > 1 else 0.0
        self.backward_s = runs[1] + messages[1] + self.parameters * self.saving_s
        self.head_s = random.choice([0.0, 0.0, 5.0]) * random.random(shape)
        self.tail_s = random.choice([0.0, 1.0, 9.0]) * random.random(shape)
        most = random.choice(np.array([1, 2, 99, 99, 99]), shape)
        self.limit = np.minimum.accumulate(most, axis=1)
        self.held = held_by_place(self.stages, self.microbatches, self.schedule)

    @property
    def work(self) -> SplitWork:
        """The work as every function takes it."""
        tables = self.forward_s, self.backward_s, self.parameters, self.saving_s, self.limit
        return SplitWork(*tables, self.schedule == "gpipe")

    def arguments(self, *more: Any) -> tuple[Any, ...]:
        """Return what every function takes first, and more."""
        return self.work, self.head_s, self.tail_s, self.held, self.microbatches, *more

    def replays(self) -> dict[tuple[int, ...], float]:
        """Return the replayed time of every split that fits."""
        searched = {}
        for split in all_splits(self.count, self.stages):
            runs = np.array([split, (*split[1:], self.count)])
            where = tuple(runs)
            if (self.limit[where] < self.held[:0:-1]).any():
                continue
            saving_s = self.parameters[where] * self.saving_s
            rows = self.forward_s[where], self.backward_s[where], saving_s, self.head_s[where]
            work = PipelineWork(*(row[np.newaxis] for row in rows))
            ends_s = finish_s(work, self.microbatches, self.schedule)
            searched[split] = float((ends_s + self.tail_s[where]).max())
        return searched


@lazily_compiled(
    "float64[::1](SplitWork, float64[:,::1], float64[:,::1], int64[::1], int64, float64,"
    " int64[::1])"
)
def _bounds_s(
    work: SplitWork,
    head_s: FloatArray,
    tail_s: FloatArray,
    held: IntArray,
    microbatches: int,
    limit_s: float,
    ends: IntArray,
) -> FloatArray:
    """Return the bounds of a split's fronts of 0, 1, 2, … stages."""
    stages, all_held = len(held) - 1, work.all_held
    rest = least_of_rest(work, head_s, tail_s, held, microbatches, limit_s)
    fronts = np.empty((stages + 1, FRONT))
    bounds_s = np.empty(stages + 1)
    empty_front(fronts[0])
    bounds_s[0] = bound_s(fronts[0], rest, stages, 0, all_held)
    i = 0
    for stage in range(stages):
        j, place = ends[stage], stages - stage
        extend(
            fronts[stage],
            work.forward_s[i, j],
            work.backward_s[i, j],
            work.parameters[i, j] * work.saving_s_per_parameter,
            head_s[i, j],
            tail_s[i, j],
            held[place],
            microbatches,
            fronts[stage + 1],
        )
        bounds_s[stage + 1] = bound_s(fronts[stage + 1], rest, place - 1, j, all_held)
        i = j
    return bounds_s


@pytest.mark.parametrize("seed", range(120))
def test_no_split_is_faster_than_the_bounds_of_its_fronts(seed: int) -> None:
    """Of none of its first stages, nor of all of them; of GPipe without heads they are its time."""
    tables = Tables(seed)
    for split, time_s in tables.replays().items():
        ends = np.array([*split[1:], tables.count])
        for limit_s in (np.inf, time_s * ROUNDED):
            bounds_s = _bounds_s(*tables.arguments(limit_s, ends))
            assert (bounds_s <= time_s * ROUNDED).all()
        if tables.work.all_held and not tables.head_s.any():
            assert bounds_s[-1] == pytest.approx(time_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(120))
def test_a_search_finds_the_fastest_split(seed: int) -> None:
    """As trying all of them does, and proves it; what is known already is not found again."""
    tables = Tables(seed)
    replays = tables.replays()
    least_s = min(replays.values(), default=np.inf)
    time_s, starts, bound, _ = search_splits(*tables.arguments(np.inf, 10**6))
    assert time_s == pytest.approx(least_s, rel=1e-9)
    assert bound >= time_s * (1.0 - 1e-9)
    if replays:
        assert replays[tuple(starts.tolist())] == time_s
        again_s, *_ = search_splits(*tables.arguments(time_s, 10**6))
        assert again_s == time_s
        for most_steps in (0, 5, 30):
            known_s = 2.0 * least_s
            time_s, _, bound, steps = search_splits(*tables.arguments(known_s, most_steps))
            assert bound <= least_s * ROUNDED or time_s == pytest.approx(least_s, rel=1e-9)
            assert steps <= max(most_steps, 1) + tables.count + tables.stages * tables.microbatches


@pytest.mark.parametrize("seed", range(60))
def test_many_candidates_are_bounded_at_once(seed: int) -> None:
    """No candidate has a split that is faster than its bound, whatever the other stages' tails."""
    tables = Tables(seed)
    (found_s,) = least_replays(
        tables.work,
        np.zeros_like(tables.head_s),
        tables.tail_s[:1, 1:].copy(),
        np.array([tables.stages]),
        np.array([tables.microbatches]),
        np.inf,
    )
    assert found_s <= min(tables.replays().values(), default=np.inf) * ROUNDED

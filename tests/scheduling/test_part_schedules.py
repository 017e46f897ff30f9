"""Parts in one compiled call equal the parts one by one, in plain Python."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.canonical import NO_CORE, CanonicalForm, canonical_form
from phaze_opt.scheduling.instance import INTRA, Plan, proving_bound, starts_in_order
from phaze_opt.scheduling.problem_columns import ProblemColumns
from phaze_opt.scheduling.quick_plan import QuickPlan, quick_plan
from phaze_opt.scheduling.reduction import contracted_ancestors, series_parts
from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleProblem
from phaze_opt.scheduling.search_arrays import search_arrays
from phaze_opt.scheduling.search_states import DURATION, LAST
from phaze_opt.scheduling.solve_schedule import solve_columns
from tests.scheduling.strategies import (
    bounds_and_list,
    improve,
    layer_like,
    problems,
    to_columns,
    to_instance,
)

EFFORT = 20_000


@dataclass
class Drafted:
    """Starts, ends and modes of operators in canonical order, makespan and bound."""

    start_s: dict[int, float] = field(default_factory=dict)
    end_s: dict[int, float] = field(default_factory=dict)
    on_all: dict[int, bool] = field(default_factory=dict)
    makespan_s: float = 0.0
    bound_s: float = 0.0

    def append(self, index: int, latency_s: float, on_all: bool) -> None:
        """Let an operator run after all others."""
        self.start_s[index], self.on_all[index] = self.makespan_s, on_all
        self.makespan_s += latency_s
        self.bound_s += latency_s
        self.end_s[index] = self.makespan_s

    def append_plan(
        self, part: list[int], quick: QuickPlan, plan: Plan, bound: int, values: np.ndarray
    ) -> None:
        """Let the plan of a part run after all others."""
        origin_s, instance = self.makespan_s, quick.instance
        end = [
            s + int(d[m]) for s, d, m in zip(plan.start, instance.duration, plan.mode, strict=True)
        ]
        duration_s = [float(values[i, mode]) for i, mode in zip(part, plan.mode, strict=True)]
        starts_s = starts_in_order(plan.start, end, duration_s, origin_s)
        for index, start_s, own_s, mode in zip(part, starts_s, duration_s, plan.mode, strict=True):
            self.start_s[index], self.end_s[index] = start_s, start_s + own_s
            self.on_all[index] = mode == INTRA
            self.makespan_s = max(self.makespan_s, start_s + own_s)
        length_s = self.makespan_s - origin_s
        if proving_bound(plan.makespan) > bound:
            length_s = min(length_s, (bound - instance.size) * instance.seconds_per_unit)
        self.bound_s += length_s


def drafted(form: CanonicalForm, columns: ProblemColumns) -> Drafted:
    """Schedule part by part."""
    draft, values = Drafted(), form.values
    instant = values[:, :2].min(axis=1) <= 0.0
    for index in np.flatnonzero(instant).tolist():
        draft.start_s[index] = draft.end_s[index] = 0.0
        draft.on_all[index] = bool(values[index, 0] > 0.0)
    ancestors = contracted_ancestors(instant, form.edges)
    members, first = series_parts(instant, ancestors)
    rules = (columns.num_tc, columns.num_vc, columns.intra_operator == "exclusive", False)
    for begin, end in itertools.pairwise(first.tolist()):
        part = members[begin:end].tolist()
        if len(part) == 1:
            (index,) = part
            on_one_s, on_all_s = values[index, :2].tolist()
            on_all = on_all_s < on_one_s and bool(form.core[index] != NO_CORE)
            draft.append(index, min(on_one_s, on_all_s), on_all)
            continue
        quick = quick_plan(members[begin:end], form.core, values, ancestors, rules)
        plan, bound = quick.plan, quick.bounds.makespan
        if not quick.proven:
            plan, bound = improve(quick.instance, quick.bounds, plan, EFFORT)
        draft.append_plan(part, quick, plan, bound, values)
    for source, target in form.edges.tolist():
        if instant[target]:
            at_s = max(draft.start_s[target], draft.end_s[source])
            draft.start_s[target] = draft.end_s[target] = at_s
    return draft


def check(problem: ScheduleProblem) -> Schedule:
    """Compare a schedule with the one of plain Python, to the bit."""
    columns = to_columns(problem)
    form = canonical_form(columns, bandwidth=True)
    found, on_all = solve_columns(columns, effort=EFFORT)
    expected = drafted(form, columns)
    for place, index in enumerate(form.order.tolist()):
        entry = found.operators[index]
        assert (entry.start_s, entry.end_s) == (expected.start_s[place], expected.end_s[place])
        assert entry.intra_operator == on_all[index] == expected.on_all[place]
        assert entry.id == columns.ids[index]
    assert found.makespan_s == expected.makespan_s
    if found.status == "feasible":
        assert found.bound_s == expected.bound_s
    else:
        assert found.bound_s == found.makespan_s
        assert expected.bound_s >= expected.makespan_s * (1.0 - 1e-9)
    return found


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=9))
def test_any_problem(problem: ScheduleProblem) -> None:
    """Random problems, most of which list schedules solve."""
    check(problem)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
@pytest.mark.parametrize(("count", "width"), [(12, 3), (30, 3), (40, 4)])
def test_layers(count: int, width: int, rule: str) -> None:
    """Graphs like layers: parts that a pass of the search solves, later ones, and open ones."""
    found = [check(layer_like(seed, count, width, intra_operator=rule)) for seed in range(6)]
    assert {"branch-and-bound"} <= {each.method for each in found}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), width=st.integers(2, 5))
def test_what_the_search_takes(seed: int, width: int) -> None:
    """Shares, least costs and resources are those of the definitions."""
    instance = to_instance(layer_like(seed, 20, width))
    bounds, _ = bounds_and_list(instance)
    arrays, at_once = search_arrays(*instance.arrays, bounds.tail)
    operators, marked, capacity, rate, least = arrays
    shares = instance.demand / instance.capacity
    assert (rate == shares.reshape(2 * instance.size, -1).T).all()
    cost = np.where(
        instance.allowed[..., np.newaxis],
        np.floor(shares * instance.duration[..., np.newaxis]),
        np.inf,
    )
    assert (least == cost.min(axis=1).T).all()
    assert (
        operators[:, DURATION : DURATION + 2] == np.where(instance.allowed, instance.duration, -1)
    ).all()
    alone = marked[:, -1].astype(bool).reshape(-1, 2)
    beside = instance.demand * (instance.allowed & ~alone)[..., np.newaxis]
    binding = beside.max(axis=1).sum(axis=0) > instance.capacity
    assert (capacity == instance.capacity[binding]).all()
    assert (marked[:, :-1] == instance.demand.reshape(2 * instance.size, -1)[:, binding]).all()
    full = (instance.demand == instance.capacity).all(axis=2)
    assert not (alone & ~full).any()
    assert ((operators[:, LAST] < 0) | alone.any(axis=1)).all()
    assert 1 <= at_once <= instance.size

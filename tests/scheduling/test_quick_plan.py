"""The compiled scheduler equals the plain one of `tests.scheduling.plain`."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.scheduling.canonical import CanonicalForm, canonical_form
from phaze_opt.scheduling.quick_plan import quick_plan
from phaze_opt.scheduling.reduction import contracted_ancestors, series_parts
from phaze_opt.scheduling.schedule_problem import ScheduleProblem, check_problem
from tests.scheduling import plain
from tests.scheduling.strategies import layer_like, problems, to_columns


def masks(words: np.ndarray) -> list[int]:
    """Return sets of operators as integers."""
    return [sum(int(word) % 2**64 << 64 * at for at, word in enumerate(row)) for row in words]


def check_plans(problem: ScheduleProblem, form: CanonicalForm) -> None:
    """Every part has the instance, the bounds and the plan of the plain scheduler."""
    values = form.values.tolist()
    attributes = [(core, *row) for core, row in zip(form.core.tolist(), values, strict=True)]
    instant = [plain.is_instant(entry) for entry in attributes]
    ancestors = plain.contracted_ancestors(instant, [(a, b) for a, b in form.edges.tolist()])
    kept = [index for index, skip in enumerate(instant) if not skip]
    skipped = np.array(instant, dtype=np.bool_)
    words = contracted_ancestors(skipped, form.edges)
    assert masks(words) == ancestors
    members, first = series_parts(skipped, words)
    parts = [part.tolist() for part in np.split(members, first[1:-1]) if len(part)]
    assert parts == plain.series_parts(kept, ancestors)
    cores, rule = (problem.num_tc, problem.num_vc), problem.intra_operator
    for part in parts:
        whole = plain.build_instance(part, attributes, ancestors, cores, rule)
        instance, bounds, plan, proven = plain.quick_plan(whole)
        place = np.array(part)
        rules = (*cores, rule == "exclusive", False)
        found = quick_plan(place, form.core, form.values, words, rules)
        assert found.proven == proven
        assert found.plan == plan
        assert found.bounds.makespan == bounds.makespan
        assert tuple(found.bounds.tail.tolist()) == bounds.tail
        assert tuple(map(tuple, found.instance.duration.tolist())) == instance.duration
        assert found.instance.modes == instance.modes
        assert found.instance.demand.tolist() == [list(map(list, pair)) for pair in instance.demand]
        assert tuple(found.instance.capacity.tolist()) == instance.capacity
        assert tuple(masks(found.instance.ancestors)) == instance.ancestors
        assert tuple(masks(found.instance.descendants)) == instance.descendants
        assert found.instance.seconds_per_unit == instance.seconds_per_unit
        assert found.instance.predecessors == instance.predecessors


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=9), bandwidth=st.booleans(), more=st.sampled_from([1, 2**38]))
def test_plans_of_any_problem(problem: ScheduleProblem, bandwidth: bool, more: int) -> None:
    """Canonical order, parts, instances, bounds and list schedules are those of plain Python."""
    problem = replace(problem, num_vc=problem.num_vc * more)
    _, attributes, edges = plain.canonical_form(problem, check_problem(problem), bandwidth)
    form = canonical_form(to_columns(problem), bandwidth)
    assert [(c, *row) for c, row in zip(form.core, form.values.tolist(), strict=True)] == attributes
    assert [tuple(pair) for pair in form.edges.tolist()] == edges
    check_plans(problem, form)


@pytest.mark.parametrize("rule", ["exclusive", "per-type"])
@pytest.mark.parametrize("seed", range(4))
def test_plans_of_layers(seed: int, rule: str) -> None:
    """The same of 90 operators, whose sets take two words."""
    problem = layer_like(seed, 90, 5, intra_operator=rule)
    form = canonical_form(to_columns(problem), bandwidth=True)
    order, _, _ = plain.canonical_form(problem, check_problem(problem), bandwidth=True)
    assert form.order.tolist() == order
    check_plans(problem, form)

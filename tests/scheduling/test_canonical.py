from dataclasses import replace

from phaze_opt.scheduling.canonical import canonical_form
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem
from tests.scheduling.strategies import cache_key, layer_like, to_columns


def test_form_is_topological() -> None:
    """In the canonical order every edge points forward."""
    problem = layer_like(2, 40, 4)
    form = canonical_form(to_columns(problem), bandwidth=True)
    assert sorted(form.order.tolist()) == list(range(40))
    assert (form.edges[:, 0] < form.edges[:, 1]).all()


def test_key_sees_everything_that_matters() -> None:
    """Every number, edge and rule changes the key; names do not."""
    problem = layer_like(2, 10, 2)
    first, *others = problem.operators
    changed = [
        replace(problem, num_vc=problem.num_vc + 1),
        replace(problem, intra_operator="per-type"),
        replace(problem, serial=True),
        replace(problem, edges=problem.edges[1:]),
        replace(problem, operators=(replace(first, latency_s=1.0), *others)),
        replace(problem, operators=(replace(first, glb_fraction=0.5), *others)),
    ]
    keys = {cache_key(variant) for variant in (problem, *changed)}
    assert len(keys) == 1 + len(changed)
    assert cache_key(problem, bandwidth=False) not in keys
    assert cache_key(problem, effort=1) not in keys
    assert cache_key(replace(problem, name="other")) in keys


def test_second_column_of_coreless_operators_is_ignored() -> None:
    """An operator on no core has one mode, so its other latency does not matter."""

    def one(intra_op_latency_s: float) -> ScheduleProblem:
        operator = ScheduleOperator("a", "none", 1.0, intra_op_latency_s)
        return ScheduleProblem("", 1, 1, (operator,), ())

    assert cache_key(one(1.0)) == cache_key(one(0.5))

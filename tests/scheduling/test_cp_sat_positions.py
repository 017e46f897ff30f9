import random

import pytest

from phaze_opt.scheduling import cp_sat_positions, cp_sat_residency, solve_jointly
from phaze_opt.scheduling.cp_sat import SolverAnswer
from phaze_opt.scheduling.cp_sat_positions import check_proof
from phaze_opt.scheduling.residency import (
    EvaluatedPlan,
    Residency,
    ResidencyPlan,
    evaluate_plan,
)
from phaze_opt.scheduling.residency_search import search_frames
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.exhaustive_residency import shortest_joint_s
from tests.scheduling.residency_problems import as_problem, layer_residency, random_residency
from tests.scheduling.residency_rules import broken_joint_rules

EFFORT = 2_000_000
SLACK = 1 + 1e-6


def without_tensors(residency: Residency) -> EvaluatedPlan | None:
    """Give the plan in which nothing is resident, if the fast method has an order."""
    best = search_frames(residency).best
    if best is None or best.makespan_s <= 0.0:
        return None
    resident = (False,) * len(best.plan.resident)
    return evaluate_plan(residency, ResidencyPlan(best.plan.order, best.plan.levels, resident))


def test_wrong_claims_are_refuted_until_the_optimum(caplog: pytest.LogCaptureFixture) -> None:
    """From any plan, the second model finds shorter ones until it confirms the shortest."""
    refuted = 0
    for seed in range(60):
        residency = random_residency(random.Random(seed))
        best = without_tensors(residency)
        if best is None:
            continue
        bound_s = 0.0
        while bound_s == 0.0:
            claim_s, longest_s = best.makespan_s, best.makespan_s
            best, bound_s = check_proof(residency, best, claim_s, claim_s / SLACK, EFFORT)
            assert best.makespan_s < longest_s or bound_s == claim_s
            refuted += bound_s == 0.0
        assert best.makespan_s == pytest.approx(shortest_joint_s(residency), rel=2e-6)
    assert refuted >= 20
    assert caplog.text.count("is wrong") == refuted


def test_layers_are_confirmed() -> None:
    """What is proven of graphs of 23 operators is confirmed within the effort."""
    for seed, mib in ((1, 16), (2, 16), (3, 64)):
        problem = as_problem(layer_residency(seed, 23, 3, mib * 2**20))
        schedule = solve_schedule(problem, method="auto")
        assert (schedule.status, schedule.method) == ("optimal", "cp-sat")


def test_a_wrong_bound_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first model claims that its hint is optimal, the schedule is not called so."""
    monkeypatch.setattr(
        cp_sat_residency, "improve_jointly", lambda residency, known, effort: (known, 1e9)
    )
    asked = 0
    for seed in range(120):
        residency = random_residency(random.Random(seed))
        problem = as_problem(residency)
        schedule = solve_schedule(problem, method="auto")
        without_s = solve_schedule(problem, residency=False).makespan_s
        optimum_s = min(without_s, shortest_joint_s(residency))
        assert schedule.bound_s <= optimum_s * SLACK
        if schedule.makespan_s > optimum_s * SLACK:
            assert schedule.status == "feasible"
        if schedule.residency is not None:
            assert broken_joint_rules(problem, schedule) == []
        asked += schedule.method == "cp-sat"
    assert asked >= 5


def test_a_proof_that_no_second_model_confirms_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second model does not end, the bound is that of the fast method."""
    problem = as_problem(layer_residency(1, 23, 3, 2**25))
    proven = solve_schedule(problem, method="auto")
    assert proven.status == "optimal"
    fast = solve_schedule(problem)
    monkeypatch.setattr(cp_sat_positions, "decide", lambda model, effort: SolverAnswer(None, 0))
    schedule = solve_schedule(problem, method="auto")
    assert schedule.status == "feasible"
    assert schedule.makespan_s == proven.makespan_s
    assert schedule.bound_s == pytest.approx(fast.bound_s, rel=1e-9)


def test_a_bound_that_proves_the_other_schedule_is_confirmed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A claim below its own plan, but above the schedule without residency, is checked."""
    residency = layer_residency(1, 23, 3, 2**25)
    worse = without_tensors(residency)
    assert worse is not None
    problem = as_problem(residency)
    optimum_s = solve_schedule(problem, method="auto").makespan_s
    claim_s = worse.makespan_s * 0.99
    enough_s = (optimum_s + claim_s) / 2
    monkeypatch.setattr(
        cp_sat_residency, "improve_jointly", lambda residency, known, effort: (worse, claim_s)
    )
    joint = solve_jointly._solve(problem, residency, enough_s, "auto", EFFORT)
    assert joint is not None
    assert joint.bound_s <= optimum_s * SLACK

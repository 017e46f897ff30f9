"""Does CP-SAT alone close small problems (by hand: ``python -m tests.scheduling.closing 200``)."""

import sys
import time
from collections import Counter

import pytest

from phaze_opt.scheduling.schedule_problem import Schedule, ScheduleProblem
from phaze_opt.scheduling.solve_schedule import solve_schedule
from tests.scheduling.schedule_rules import broken_rules
from tests.scheduling.strategies import random_problem


def closes(problem: ScheduleProblem) -> Schedule:
    """Assert that CP-SAT alone proves the optimum that the exact search has."""
    exact = solve_schedule(problem)
    schedule = solve_schedule(problem, method="cp-sat")
    assert (exact.status, schedule.status) == ("optimal", "optimal"), problem.name
    assert schedule.makespan_s == pytest.approx(exact.makespan_s, rel=1e-9), problem.name
    assert broken_rules(problem, schedule) == []
    return schedule


def main(count: int) -> None:
    """Print how many random problems were closed, by which method, and how long it took."""
    methods: Counter[str] = Counter()
    seconds = []
    for seed in range(count):
        began = time.perf_counter()
        methods[closes(random_problem(seed)).method] += 1
        seconds.append(time.perf_counter() - began)
    print(f"{methods.total()} of {count} closed: {dict(methods)}")
    print(f"{sum(seconds):.1f} s in all, {max(seconds):.1f} s at most")


if __name__ == "__main__":
    main(int(sys.argv[1]))

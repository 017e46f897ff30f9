import numpy as np
from hypothesis import assume, given, settings

from phaze_opt.scheduling.list_scheduler import list_schedule
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from tests.scheduling.strategies import bounds_and_list, problems, to_instance


@settings(max_examples=40, deadline=None)
@given(problem=problems(most=9))
def test_list_schedules_keep_all_limits(problem: ScheduleProblem) -> None:
    """Precedences and capacities hold; no list schedule exceeds the sum of durations."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    _, plan = bounds_and_list(instance)
    length = [instance.duration[i][m] for i, m in enumerate(plan.mode)]
    for i, start in enumerate(plan.start):
        for j in range(instance.size):
            if instance.ancestors[i, 0] >> j & 1:
                assert plan.start[j] + length[j] <= start
        for resource, capacity in enumerate(instance.capacity):
            taken = sum(
                instance.demand[j, plan.mode[j], resource]
                for j in range(instance.size)
                if plan.start[j] <= start < plan.start[j] + length[j]
            )
            assert taken <= capacity
    assert plan.makespan == max(s + p for s, p in zip(plan.start, length, strict=True))
    serial = np.where(instance.allowed, instance.duration, 2**62).min(axis=1).sum()
    assert plan.makespan <= serial


def test_draining_lets_the_first_go_first() -> None:
    """With draining, operators wait behind an operator of higher priority that does not fit."""
    duration = np.array([[4, 4], [2, 2], [4, 4]])
    demand = np.array([[[1], [1]], [[2], [2]], [[1], [1]]])
    none, mode, order = np.zeros((3, 1), dtype=np.int64), np.array([0, 0, 0]), np.arange(3)
    arrays = duration, demand, np.array([2]), none, mode, order
    assert list_schedule(*arrays, False)[0].tolist() == [0, 4, 0]
    assert list_schedule(*arrays, True)[0].tolist() == [0, 4, 6]


def test_what_is_not_ready_holds_nothing_up() -> None:
    """Behind an operator whose predecessor still runs, others start, with draining or without."""
    duration, demand = np.full((3, 2), 4), np.ones((3, 2, 1), dtype=np.int64)
    after_the_first = np.array([[0], [1], [0]])
    mode, order = np.zeros(3, dtype=np.int64), np.arange(3)
    for drain in (False, True):
        arrays = duration, demand, np.array([2]), after_the_first, mode, order
        assert list_schedule(*arrays, drain)[0].tolist() == [0, 4, 0]

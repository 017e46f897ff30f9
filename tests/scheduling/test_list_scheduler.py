from hypothesis import assume, given, settings

from phaze_opt.scheduling.bounds import root_bounds
from phaze_opt.scheduling.instance import Instance
from phaze_opt.scheduling.list_scheduler import best_list_schedule, list_schedule
from phaze_opt.scheduling.schedule_problem import ScheduleProblem
from tests.scheduling.strategies import problems
from tests.scheduling.test_bounds import to_instance


@settings(max_examples=80, deadline=None)
@given(problem=problems(most=9))
def test_list_schedules_keep_all_limits(problem: ScheduleProblem) -> None:
    """Precedences and capacities hold; no list schedule exceeds the sum of durations."""
    assume(sum(min(x.latency_s, x.intra_op_latency_s) for x in problem.operators) > 0.0)
    instance = to_instance(problem)
    plan = best_list_schedule(instance, root_bounds(instance))
    length = [instance.duration[i][m] for i, m in enumerate(plan.mode)]
    for i, start in enumerate(plan.start):
        for j in range(instance.size):
            if instance.ancestors[i] >> j & 1:
                assert plan.start[j] + length[j] <= start
        for resource, capacity in enumerate(instance.capacity):
            taken = sum(
                instance.demand[j][plan.mode[j]][resource]
                for j in range(instance.size)
                if plan.start[j] <= start < plan.start[j] + length[j]
            )
            assert taken <= capacity
    assert plan.makespan == max(s + p for s, p in zip(plan.start, length, strict=True))
    serial = sum(instance.least_duration(i) for i in range(instance.size))
    assert plan.makespan <= serial


def test_draining_lets_the_first_go_first() -> None:
    """With draining, operators wait behind an operator of higher priority that does not fit."""
    instance = Instance(
        duration=((4, 4), (2, 2), (4, 4)),
        modes=((0,), (0,), (0,)),
        demand=(((1,), (1,)), ((2,), (2,)), ((1,), (1,))),
        capacity=(2,),
        ancestors=(0, 0, 0),
        descendants=(0, 0, 0),
        seconds_per_unit=1.0,
    )
    priority = [0, 1, 2]
    assert list_schedule(instance, (0, 0, 0), priority, drain=False).start == (0, 4, 0)
    assert list_schedule(instance, (0, 0, 0), priority, drain=True).start == (0, 4, 6)

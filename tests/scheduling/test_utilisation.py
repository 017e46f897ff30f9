from hypothesis import given, settings

from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduledOperator,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.scheduling.solve_schedule import solve
from phaze_opt.scheduling.utilisation import Load, utilisation
from tests.scheduling.strategies import problems


@settings(max_examples=60, deadline=None)
@given(problem=problems(most=8))
def test_average_at_most_peak_at_most_one(problem: ScheduleProblem) -> None:
    """No valid schedule uses more than there is, nor more on average than at its peak."""
    loads = utilisation(problem, solve(problem))
    for load in (loads.tc, loads.vc, loads.hbm, loads.glb, loads.link):
        assert 0.0 <= load.average <= load.peak + 1e-9
        assert load.peak <= 1.0 + 1e-6


def test_both_modes_and_types_count() -> None:
    """One of two tensor cores for half the time, then both; a fused operator takes both types."""
    problem = ScheduleProblem(
        "three",
        2,
        4,
        (
            ScheduleOperator("a", "TC+VC", 2.0, 2.0, hbm_fraction=0.5),
            ScheduleOperator("b", "TC", 3.0, 1.0, intra_op_hbm_fraction=1.0),
            ScheduleOperator("c", "none", 1.0, 1.0, hbm_fraction=0.25, link_fraction=1.0),
        ),
        ((0, 1), (1, 2)),
    )
    schedule = Schedule(
        (
            ScheduledOperator("a", 0.0, 2.0, False),
            ScheduledOperator("b", 2.0, 3.0, True),
            ScheduledOperator("c", 3.0, 4.0, False),
        ),
        4.0,
        "optimal",
        4.0,
        "bound",
        0.0,
    )
    loads = utilisation(problem, schedule)
    assert loads.tc == Load(average=0.5, peak=1.0)
    assert loads.vc == Load(average=0.125, peak=0.25)
    assert loads.hbm == Load(average=0.5625, peak=1.0)
    assert loads.link == Load(average=0.25, peak=1.0)

import math
from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.scheduling.schedule_problem import ScheduleOperator, ScheduleProblem, check_problem

GOOD = ScheduleProblem(
    name="three",
    num_tc=2,
    num_vc=0,
    operators=tuple(ScheduleOperator(name, "TC", 2.0, 1.0) for name in ("first", "odd", "last")),
    edges=((0, 1), (1, 2)),
)


def change_odd(**changes: Any) -> ScheduleProblem:
    """Give the good problem with another operator ``odd``."""
    first, odd, last = GOOD.operators
    return replace(GOOD, operators=(first, replace(odd, **changes), last))


def test_a_good_problem_passes() -> None:
    """A valid problem passes, and its topological order is returned."""
    assert check_problem(replace(GOOD, edges=((2, 1), (1, 0)))) == (2, 1, 0)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (change_odd(core="GPU"), "core type.*'odd'.*'GPU'.*TC"),
        (change_odd(latency_s=-1.0), "latency_s.*'odd'.*-1.0"),
        (change_odd(latency_s=math.nan), "latency_s.*'odd'.*nan"),
        (change_odd(intra_op_latency_s=math.inf), "intra_op_latency_s.*'odd'.*inf"),
        (change_odd(hbm_fraction=1.01), "hbm_fraction.*'odd'.*1.01"),
        (change_odd(intra_op_glb_fraction=math.nan), "intra_op_glb_fraction.*'odd'"),
        (change_odd(core="VC"), "No core.*'odd'.*num_vc is 0"),  # no vector core
        (change_odd(core="TC+VC"), "No core.*'odd'"),
        (change_odd(id="last"), "Two operators.*'last'"),
        (replace(GOOD, edges=((0, 1), (1, 2), (2, 1))), "cycle: 'odd' -> 'last' -> 'odd'"),
        (replace(GOOD, edges=((1, 1),)), "cycle: 'odd' -> 'odd'"),
        (replace(GOOD, edges=((1, 3),)), "'odd'.*number 3"),
        (replace(GOOD, edges=((-1, 1),)), "'odd'.*number -1"),
        (replace(GOOD, num_tc=-2), "num_tc is -2"),
        (
            replace(
                GOOD,
                operators=tuple(
                    ScheduleOperator(name, "TC", 1e308, 1.0) for name in ("one", "odd")
                ),
                edges=(),
            ),
            "'odd'.*add up",
        ),
    ],
)
def test_refused_with_the_operator(problem: ScheduleProblem, words: str) -> None:
    """Every refusal names the operator and the value."""
    with pytest.raises(InputError, match=words):
        check_problem(problem)


def test_unknown_rule() -> None:
    """An unknown rule is refused, and the nearest rule is suggested."""
    rule: Any = "exclusiv"
    with pytest.raises(InputError, match=r"'exclusiv'.*'exclusive'"):
        check_problem(ScheduleProblem("", 1, 1, (), (), rule))

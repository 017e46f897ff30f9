import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.estimator.vector_core import vector_cycles, vector_operator, vector_operators
from phaze_opt.training import OPTIMIZERS
from phaze_opt.workload.graph import VECTOR_KINDS


def test_the_table_has_exactly_the_kinds_of_the_workload() -> None:
    """Every vector kind that capture can give has one row, as has every optimizer's update."""
    updates = {f"{name}_update" for name in OPTIMIZERS}
    assert set(vector_operators()) == set(VECTOR_KINDS) | updates


@given(st.integers(1, 10**9), st.integers(1, 4096), st.integers(2, 256))
def test_lanes_are_a_roofline_and_never_hurt(elements: int, cores: int, lanes: int) -> None:
    """Work over lanes is the least time; twice the cores never take longer."""
    cycles = vector_cycles(elements, 3.0, cores * lanes)
    assert cycles >= 3.0 * elements / (cores * lanes)
    assert vector_cycles(elements, 3.0, 2 * cores * lanes) <= cycles


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_two_parts_together_never_cost_more(first: int, second: int) -> None:
    """T(b1 + b2) ≤ T(b1) + T(b2)."""
    parts = vector_cycles(np.array([first, second]), 2.0, 512).sum()
    assert vector_cycles(first + second, 2.0, 512) <= parts


def test_an_unknown_kind_is_refused() -> None:
    """A kind outside the table raises with the nearest one."""
    with pytest.raises(InputError, match="Did you mean 'softmax'"):
        vector_operator("softmaxx")

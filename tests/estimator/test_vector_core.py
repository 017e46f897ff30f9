import pytest

from phaze_opt.errors import InputError
from phaze_opt.estimator.vector_core import vector_operator, vector_operators
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.workload.graph import VECTOR_KINDS


def test_the_table_has_exactly_the_kinds_of_the_workload() -> None:
    """Every vector kind that capture can give has one row, as has every optimizer's update."""
    updates = {f"{name}_update" for name in OPTIMIZERS}
    assert set(vector_operators()) == set(VECTOR_KINDS) | updates


def test_an_unknown_kind_is_refused() -> None:
    """A kind outside the table raises with the nearest one."""
    with pytest.raises(InputError, match="Did you mean 'softmax'"):
        vector_operator("softmaxx")

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.compiled import lazily_compiled
from phaze_opt.scheduling.tuple_hashes import (
    EMPTY,
    add_entry,
    end_tuple,
    hash_float,
    hash_integer,
    sort_first,
)


@lazily_compiled("i8(f8)")
def float_hash(value: float) -> int:
    """Hash a floating-point number."""
    return hash_float(value)


@lazily_compiled("i8(i8)")
def integer_hash(value: int) -> int:
    """Hash an integer."""
    return hash_integer(value)


@lazily_compiled("i8(i8[::1])")
def sorted_hash(values: np.ndarray) -> int:
    """Hash sorted integers as a tuple."""
    sort_first(values, len(values))
    state = EMPTY
    for value in values:
        state = add_entry(state, hash_integer(value))
    return end_tuple(state, len(values))


@given(value=st.floats(0.0, allow_infinity=False, allow_nan=False))
def test_numbers_hash_as_in_python(value: float) -> None:
    """Compiled code hashes a floating-point number as Python does."""
    assert float_hash(value) == hash(value)


words = st.integers(-(2**63), 2**63 - 1)


@given(value=words)
def test_integers_hash_as_in_python(value: int) -> None:
    """Compiled code hashes an integer as Python does."""
    assert integer_hash(value) == hash(value)


@given(values=st.lists(words, max_size=9))
def test_tuples_hash_as_in_python(values: list[int]) -> None:
    """Compiled code hashes a tuple of sorted integers as Python does."""
    assert sorted_hash(np.array(values, dtype=np.int64)) == hash(tuple(sorted(values)))

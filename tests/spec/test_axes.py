"""Axes: their values, and how Optuna sees them."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.spec.axes import (
    Axis,
    Choices,
    Derived,
    Fixed,
    PowerRange,
    Searched,
    SolvedChoices,
    StepRange,
    axis_words,
    plain_axis,
    read_axis,
    read_derived,
)

powers = st.tuples(st.integers(0, 12), st.integers(0, 8)).map(
    lambda pair: PowerRange(2 ** pair[0], 2 ** (pair[0] + pair[1]))
)
whole_steps = st.tuples(st.integers(1, 100), st.integers(1, 40), st.integers(0, 30)).map(
    lambda three: StepRange(three[0], three[0] + three[1] * three[2], three[1])
)
# In hundredths, so that sums of steps are decimal numbers as people write them.
decimal_steps = st.tuples(st.integers(1, 500), st.integers(1, 80), st.integers(0, 30)).map(
    lambda three: StepRange(three[0] / 100, (three[0] + three[1] * three[2]) / 100, three[1] / 100)
)
choices = st.lists(
    st.integers(1, 99) | st.sampled_from(["none", "full"]), min_size=1, max_size=5, unique=True
).map(lambda values: Choices(tuple(values)))
searched: st.SearchStrategy[Any] = powers | whole_steps | decimal_steps | choices


@given(searched)
def test_parameters_are_the_inverse_of_values(axis: Searched) -> None:
    """Every value of an axis becomes a parameter that Optuna has, and is read back from it."""
    name, distribution = axis.parameter("axis")
    for index in range(len(axis.values)):
        parameter = axis.to_parameter(index)
        internal = distribution.to_internal_repr(parameter)
        assert distribution._contains(internal)
        assert axis.to_index(distribution.to_external_repr(internal)) == index
    assert name in ("axis", "log2_axis")


@given(searched, st.integers(0, 2**32 - 1))
def test_every_sample_is_a_value(axis: Searched, seed: int) -> None:
    """Whatever Optuna draws has an index; its sums of steps are off in the last bits."""
    name, distribution = axis.parameter("axis")
    sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    assert axis.to_index(study.ask({name: distribution}).params[name]) is not None


@given(searched | st.builds(SolvedChoices, st.just((0, 1))) | st.builds(Fixed, st.integers(1, 9)))
def test_what_is_written_reads_back(axis: Axis) -> None:
    """An axis as a spec states it is the same axis."""
    assert read_axis(plain_axis(axis)) == axis
    assert axis_words(axis)


@given(whole_steps | decimal_steps)
def test_steps_are_exact(axis: StepRange) -> None:
    """The first value is min and the last is max, whole where all are, each the decimal number."""
    assert (axis.values[0], axis.values[-1]) == (axis.min, axis.max)
    assert all(type(value) is (int if axis.is_whole else float) for value in axis.values)
    for index, value in enumerate(axis.values):
        assert value == pytest.approx(axis.min + index * axis.step, rel=1e-12)
    assert StepRange(0.1, 0.3, 0.1).values == (0.1, 0.2, 0.3)


@given(st.integers(0, 12), st.integers(0, 12))
def test_ranges_hold_their_powers(low: int, high: int) -> None:
    """A range holds every power of two from its minimum to its maximum."""
    if low <= high:
        axis = PowerRange(2**low, 2**high)
        assert axis.exponents == (low, high)
        assert axis.values == tuple(2**e for e in range(low, high + 1))


@pytest.mark.parametrize(
    ("text", "source", "factor"),
    [("pe_x", "pe_x", 1.0), ("37.5 * hbm_gib", "hbm_gib", 37.5), ("2*pe_x", "pe_x", 2.0)],
)
def test_derived_values(text: str, source: str, factor: float) -> None:
    """A derived axis is a factor times another one, exact as it is written."""
    derived = read_derived(text)
    assert derived == Derived(source, factor)
    assert derived.of(16) == 16 * factor
    assert read_derived(derived.text) == derived
    assert Derived("a", 0.1).of(3) == 0.3


@pytest.mark.parametrize("text", ["", "3", "2 x", "pe_x * 2", "-1 * pe_x", "0 * pe_x", "__x"])
def test_other_text_is_not_derived(text: str) -> None:
    """Text that is no product of a positive number and a name is none."""
    assert read_derived(text) is None


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"min": 3, "max": 8}, "power of two"),
        ({"min": 8, "max": 4}, "must not be above max"),
        ({"min": 1}, "must have min and max"),
        ({"min": 1, "max": 10, "step": 4}, "whole number of steps"),
        ({"min": 1, "max": 10, "step": 0}, "must be positive"),
        ({"min": 0, "max": 10**9, "step": 1}, "more than 100,000"),
        ({"min": 1, "max": 2, "by": 1}, "Unknown key of an axis"),
        ({"solve": 3}, "a list under solve"),
        ([], "different choices"),
        ([1, 1], "different choices"),
        ([None], "finite number"),
        ([float("nan")], "finite number"),
        ((1, 2, 4), "length 2"),
        (None, "single value"),
    ],
)
def test_mistakes_are_named(stated: object, sentence: str) -> None:
    """What is no axis is refused in one sentence."""
    with pytest.raises(InputError, match=sentence):
        read_axis(stated)

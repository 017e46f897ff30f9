"""What a study searches for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.errors import InputError
from phaze_opt.spec.objectives import OBJECTIVES, Measured, ObjectiveKind, aggregated

positive = st.floats(1e-3, 1e6)
measured = st.builds(
    Measured,
    throughput_samples_per_s=positive,
    tokens_per_s=positive,
    energy_j_per_sample=positive,
    power_w_per_device=positive,
    area_mm2=positive,
    devices=st.integers(1, 1024),
    wall_j_per_sample=positive,
    usd_per_sample=positive,
)
kinds = st.sampled_from(list(OBJECTIVES.values()))
pairs = st.lists(st.tuples(measured, measured, st.floats(0.1, 10)), min_size=1, max_size=4)


@given(kinds, positive, st.floats(1e-9, 1e12))
def test_infeasible_is_worse_in_every_direction(
    kind: ObjectiveKind, value: float, violation: float
) -> None:
    """Whatever the objective, no feasible point is as bad as an infeasible one, nor infinite."""
    feasible, infeasible = kind.told(value, 0.0), kind.told(0.0, violation)
    assert math.isfinite(infeasible)
    assert infeasible < feasible if kind.maximise else infeasible > feasible
    worse = kind.told(0.0, 2.0 * violation)
    assert worse <= infeasible if kind.maximise else worse >= infeasible


@pytest.mark.parametrize("kind", OBJECTIVES.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_values_that_no_design_has_are_refused(kind: ObjectiveKind, value: float) -> None:
    """A feasible value is positive and finite."""
    with pytest.raises(InputError, match=kind.metric):
        kind.told(value, 0.0)


@given(kinds, pairs)
def test_a_design_relative_to_itself_is_one(
    kind: ObjectiveKind, some: list[tuple[Measured, Measured, float]]
) -> None:
    """However workloads are joined, the reference has the value 1; the area stays what it is."""
    measured, weights = [here for here, _, _ in some], [weight for _, _, weight in some]
    for how in ("geometric-mean", "weighted-mean", "minimum"):
        value = aggregated(kind, how, measured, measured, weights)
        assert value == pytest.approx(measured[0].area_mm2 if kind.name == "area" else 1.0)


@given(pairs)
def test_small_models_do_not_dominate(some: list[tuple[Measured, Measured, float]]) -> None:
    """A workload whose samples are a thousand times smaller has no more weight."""
    kind = OBJECTIVES["throughput"]
    measured, reference = [here for here, _, _ in some], [there for _, there, _ in some]
    weights = [weight for _, _, weight in some]

    def scaled(first: Measured) -> Measured:
        return replace(first, throughput_samples_per_s=1000 * first.throughput_samples_per_s)

    small_measured, small_reference = (
        [scaled(measured[0]), *measured[1:]],
        [scaled(reference[0]), *reference[1:]],
    )
    for how in ("geometric-mean", "weighted-mean", "minimum"):
        value = aggregated(kind, how, measured, reference, weights)
        assert aggregated(kind, how, small_measured, small_reference, weights) == pytest.approx(
            value
        )


@given(kinds, pairs)
def test_means_lie_between_the_worst_and_the_best(
    kind: ObjectiveKind, some: list[tuple[Measured, Measured, float]]
) -> None:
    """The minimum is the worst workload in the direction of the objective, means lie above it."""
    if kind.name == "area":
        return
    measured, reference = [here for here, _, _ in some], [there for _, there, _ in some]
    weights = [weight for _, _, weight in some]
    ratios = [
        kind.of(here) / kind.of(there) for here, there in zip(measured, reference, strict=True)
    ]
    worst = min(ratios) if kind.maximise else max(ratios)
    assert aggregated(kind, "minimum", measured, reference, weights) == worst
    for how in ("geometric-mean", "weighted-mean"):
        mean = aggregated(kind, how, measured, reference, weights)
        assert min(ratios) * (1 - 1e-9) <= mean <= max(ratios) * (1 + 1e-9)


def test_values_follow_from_their_definitions() -> None:
    """Each objective of one design by hand."""
    measured = Measured(100.0, 51_200.0, 3.0, 250.0, 400.0, 8, 5.0, 1e-4)
    values = {name: kind.of(measured) for name, kind in OBJECTIVES.items()}
    assert values == {
        "throughput": 100.0,
        "tokens": 51_200.0,
        "throughput_per_area": 100.0 / 3200.0,
        "throughput_per_dollar": 1e4,
        "throughput_per_watt": 0.2,
        "energy_per_sample": 3.0,
        "power": 250.0,
        "area": 400.0,
    }

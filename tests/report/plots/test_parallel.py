"""The plot of the best designs as lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.plots.parallel import _value_column, parallel
from phaze_opt.report.study_view import StudyView
from phaze_opt.spec.ordering import Rank, value_bin
from phaze_opt.study.trials import Metrics, RunMetrics, TrialRecord
from phaze_opt.units import format_number
from tests.report.plots.figures import best_designs


def test_every_design_is_a_line_and_the_best_comes_last(view: StudyView) -> None:
    """Lines have a height on every axis; on that of the values the best stands at its end."""
    figure = parallel(view)
    designs = best_designs(view)
    names = [line["name"] for line in figure["data"]]
    assert names == [f"place {place}" for place in range(len(designs), 0, -1)]
    axes = len(figure["layout"]["xaxis"]["ticktext"])
    for line in figure["data"]:
        assert len(line["y"]) == axes and all(0.0 <= height <= 1.0 for height in line["y"])
    assert figure["data"][-1]["y"][-1] == pytest.approx(1.0, abs=0.01)


def test_the_ends_of_the_values_are_labelled(view: StudyView) -> None:
    """The lowest and the highest value stand beside their axis."""
    figure = parallel(view)
    best = best_designs(view)
    values = [trial.metrics.value for trial in best if trial.metrics is not None]
    last = len(figure["layout"]["xaxis"]["ticktext"]) - 1
    labels = {
        note["y"]: note["text"] for note in figure["layout"]["annotations"] if note["x"] == last
    }
    assert labels == {0.0: format_number(min(values)), 1.0: format_number(max(values))}


@given(
    st.floats(1e-3, 1e9),
    st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=8),
    st.booleans(),
)
def test_the_best_ends_where_the_best_is(value: float, steps: list[float], maximise: bool) -> None:
    """Its line ends at the end of the axis that has its value, whatever is equal to it."""
    ranks = [
        Rank(value * (1.0 + step), 1, 1.0, None, (place,), maximise)
        for place, step in enumerate((*steps, *(step * 1e-3 for step in steps)))
    ]
    ranks.sort(key=lambda rank: rank.key)
    column = _value_column("value", [_trial(rank) for rank in ranks])
    heights = column.heights
    assert all(0.0 <= height <= 1.0 for height in heights)
    assert heights[0] == (max(heights) if maximise else min(heights))
    assert column.labels[heights[0]] == format_number(ranks[0].value)
    equal = [value_bin(rank.value) == value_bin(ranks[0].value) for rank in ranks]
    assert equal == [height == heights[0] for height in heights]


def _trial(rank: Rank) -> TrialRecord:
    """Return a feasible trial with the value of a rank."""
    metrics = Metrics(
        feasible=True,
        reason=None,
        violation=0.0,
        values=(rank.value,),
        area_mm2=rank.area_mm2,
        runs=(RunMetrics("toy", rank.value, None, "key"),),
        cached=False,
        proven_schedules=0,
        schedules=0,
        evaluate_s=0.0,
    )
    return TrialRecord(0, "feasible", None, metrics, None, None, rank)

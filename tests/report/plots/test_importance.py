"""What one step from the best design costs, as it is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phaze_opt.report.figure_style import BLUE, GREEN
from phaze_opt.report.plots.importance import importance
from phaze_opt.report.study_view import StudyView, view_of
from phaze_opt.units import format_number
from tests.report.studies import run_study


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    """View a toy study with all steps from its best design."""
    return view_of(run_study(tmp_path_factory.mktemp("steps"), trials=60), evaluate=True)


def test_every_step_is_a_bar_or_says_why_not(stepped: StudyView) -> None:
    """A bar has the change of the value; where there is none, a sentence stands instead."""
    drawn = importance(stepped)
    (trace,) = drawn["data"]
    notes = [note["text"] for note in drawn["layout"]["annotations"]]
    assert len(notes) == len(trace["x"]) == len(set(trace["y"])) == len(stepped.steps)
    best = stepped.best
    assert best is not None
    feasible = 0
    for step in stepped.steps:
        metrics = step.metrics
        if metrics is not None and metrics.feasible:
            change = metrics.value / best.metrics.value - 1.0
            place = notes.index(f"{format_number(metrics.value)} ({change:+.1%})")
            assert trace["x"][place] == pytest.approx(100.0 * change)
            feasible += 1
    assert feasible and notes.count("end of the axis") == sum(
        step.value is None for step in stepped.steps
    )
    assert "above the area" in notes and "not evaluated yet" not in notes
    assert all(x == 0.0 for x, text in zip(trace["x"], notes, strict=True) if "%" not in text)


def test_the_axis_that_costs_most_is_on_top(stepped: StudyView) -> None:
    """Of each axis the larger of its two changes counts; the HBM's size changes nothing here."""
    (trace,) = importance(stepped)["data"]
    largest = [max(map(abs, pair)) for pair in zip(trace["x"][::2], trace["x"][1::2], strict=True)]
    assert largest == sorted(largest) and largest[-1] > 0.0
    hbm = [x for x, y in zip(trace["x"], trace["y"], strict=True) if y.startswith("HBM")]
    assert hbm == [0.0, 0.0]


def test_without_an_evaluation_the_plot_says_so(view: StudyView) -> None:
    """Nothing is computed for a page; what is not known is no bar."""
    steps = tuple(replace(step, metrics=None) for step in view.steps)
    drawn = importance(replace(view, steps=steps))
    notes = {note["text"] for note in drawn["layout"]["annotations"]}
    assert notes == {"not evaluated yet", "end of the axis"}
    assert set(drawn["data"][0]["x"]) == {0.0}


@pytest.mark.parametrize("objective", ["throughput", "area"])
def test_a_better_design_is_green(tmp_path: Path, objective: str) -> None:
    """Whether more is better or less: where the trials have missed it."""
    view = view_of(run_study(tmp_path, 12, objectives=(objective,), baselines=()), evaluate=True)
    (trace,) = importance(view)["data"]
    best = view.best
    assert best is not None
    sign = 1.0 if objective == "throughput" else -1.0
    colours = trace["marker"]["color"]
    assert GREEN in colours and BLUE in colours
    for x, colour in zip(trace["x"], colours, strict=True):
        assert (colour == GREEN) == (sign * x > 0.1)

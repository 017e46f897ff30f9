"""Plots of single evaluations, from Python and for pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plotly.graph_objects
import pytest

import phaze_opt as po
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation
from phaze_opt.placement.placement_problem import Misfit, StageMemory
from phaze_opt.report.plots.of_evaluations import EVALUATION_PLOT_KINDS, evaluation_plot
from phaze_opt.report.plots.stacked import Scale, StackedBar, stacked
from phaze_opt.report.study_view import StudyView
from phaze_opt.study.study import Study
from phaze_opt.units import GIB


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    """Evaluate a small run."""
    small = "gpt:layers=2,hidden=64,heads=2,sequence=32,vocab=128"
    return po.evaluate(small, "tpuv4-lanes", "tpuv4-ici-flat", po.Training(16), devices=4)


def _misfit(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation that does not fit its memory."""
    memory = StageMemory(3 * GIB, GIB, 2 * GIB, 0, 0)
    return replace(
        evaluation,
        feasible=False,
        reason="too much",
        time_per_batch_s=None,
        placement=None,
        time_breakdown_s={},
        misfit=Misfit(memory, 4.0 * GIB),
    )


def test_a_figure_in_python_has_the_numbers(evaluation: Evaluation) -> None:
    """It is a figure of plotly's package, whose bars are the parts of the whole."""
    figure = evaluation.plot()
    assert isinstance(figure, plotly.graph_objects.Figure)
    lengths = [trace.x[0] for trace in figure.data]
    whole_s = evaluation.time_per_batch_s or 0.0
    shares = [seconds / whole_s for seconds in _seconds(evaluation)]
    assert [length / sum(lengths) for length in lengths] == pytest.approx(shares)
    held = sum(trace.x[0] for trace in evaluation.plot("memory").data) * GIB
    assert evaluation.placement is not None
    totals = [stage.memory_bytes.total for stage in evaluation.placement.stages]
    assert held == pytest.approx(max(totals), rel=1e-2)
    bound = {trace.name: trace.x[0] for trace in evaluation.plot("binding").data}
    assert sum(bound.values()) == pytest.approx(100.0, abs=1.0)


def _seconds(evaluation: Evaluation) -> list[float]:
    """List the parts of a batch that are drawn, in the order of the plot."""
    order = (
        *("forward", "recompute", "backward", "tensor_collectives", "transfer"),
        *("gradient_synchronisation", "parameter_gather", "optimizer"),
        *("gradient_accumulation", "bubble"),
    )
    parts_s, whole_s = evaluation.time_breakdown_s, evaluation.time_per_batch_s or 0.0
    return [parts_s[kind] for kind in order if parts_s.get(kind, 0.0) > 5e-4 * whole_s]


def test_a_study_draws_what_its_page_shows(view: StudyView, study: Study) -> None:
    """Each plot has its title; an unknown one is refused with the known ones."""
    figure = study.plot("area")
    assert isinstance(figure, plotly.graph_objects.Figure)
    assert figure.layout.title.text == "Value against chip area"
    assert len(study.plot().data) > 1
    wrong: Any = "areas"
    with pytest.raises(InputError, match="Did you mean 'area'"):
        study.plot(wrong)


def test_an_unknown_plot_of_an_evaluation_is_refused(evaluation: Evaluation) -> None:
    """With those that there are."""
    wrong: Any = "energy"
    with pytest.raises(InputError, match="Allowed: binding, memory, time"):
        evaluation.plot(wrong)


def test_what_does_not_fit_has_a_memory_and_no_time(evaluation: Evaluation) -> None:
    """Its bar ends beyond the line of what a device may hold; beside it stands one that fits."""
    both = {"A": evaluation, "B": _misfit(evaluation)}
    memory = evaluation_plot(both, "memory", {"A": 30.0 * GIB})
    assert [shape["x0"] for shape in memory["layout"]["shapes"]] == pytest.approx([30.0, 4.0])
    assert sum(trace["x"][1] for trace in memory["data"]) == pytest.approx(6.0)
    assert "6 GiB of 4 GiB" in [note["text"] for note in memory["layout"]["annotations"]]
    assert evaluation_plot(both, "time")["data"][0]["y"] == ["A"]
    for kind in EVALUATION_PLOT_KINDS:
        alone = evaluation_plot({"B": replace(both["B"], misfit=None, layers=())}, kind)
        assert alone["data"] == [] and alone["layout"]["annotations"]


def test_narrow_words_stand_above_their_bars() -> None:
    """Every whole is named there too, and no text lies outside the plot; tags are text."""
    bars = [StackedBar(f"<b>{name}", {"a": 1.0, "b": 2.0}, 3.0, "three") for name in "xy"]
    figure = stacked(bars, Scale("size", 1.0, str, str, {"a": "#000000"}))
    narrow = figure["narrow"]["layout"]
    assert [note["x"] for note in narrow["annotations"]] == [0, 0]
    assert narrow["annotations"][0]["text"] == "&lt;b&gt;x: three"
    assert narrow["height"] > figure["layout"]["height"]

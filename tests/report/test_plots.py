"""The plots of a study: what they show, how much, and that plotly takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.report.figure_style import MOST_POINTS, thinned
from phaze_opt.report.plots import PLOT_KINDS, _explained, all_plots, importances, plot
from phaze_opt.report.study_view import StudyView, view_of
from phaze_opt.search.space import Space
from tests.report.studies import HOSTILE, run_study


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> StudyView:
    """Run a toy study, and view it."""
    return view_of(run_study(tmp_path_factory.mktemp("plots"), trials=60))


def points(figure: dict[str, Any]) -> int:
    """Count the points of all traces."""
    return sum(len(trace["x"]) for trace in figure["data"])


def named(figure: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the trace of a name."""
    (trace,) = [one for one in figure["data"] if one["name"] == name]
    return dict(trace)


@pytest.mark.parametrize("kind", PLOT_KINDS)
def test_plotly_takes_every_figure(view: StudyView, kind: Any) -> None:
    """Each entry is one that plotly knows, and the figure is strict JSON."""
    figure = plot(view, kind)
    plotly.graph_objects.Figure(figure)
    json.dumps(figure, allow_nan=False)
    assert 0 < points(figure) <= MOST_POINTS


def test_axes_have_units(view: StudyView) -> None:
    """Whoever sees a number sees its unit."""
    figures = all_plots(view)
    assert figures["history"]["layout"]["yaxis"]["title"]["text"] == "throughput [samples/s]"
    assert "[mm²" in figures["area"]["layout"]["xaxis"]["title"]["text"]
    assert "time of a batch [" in figures["breakdown"]["layout"]["xaxis"]["title"]["text"]
    assert "GLB<br>[MiB]" in figures["parallel"]["layout"]["xaxis"]["ticktext"]


def test_history_ends_at_the_best_feasible_value(view: StudyView) -> None:
    """The line never falls, and ends with the best value at the last trial."""
    line = named(plot(view, "history"), "best so far")
    assert line["y"] == sorted(line["y"])
    feasible = [one.metrics.value for one in view.summary.records if one.rank and one.metrics]
    assert line["y"][-1] == max(feasible)
    assert line["x"][-1] == view.summary.records[-1].number


def test_references_are_drawn_at_their_values(view: StudyView) -> None:
    """Every baseline has its line in the history, and its mark beside the trials' areas."""
    history, area = plot(view, "history"), plot(view, "area")
    for one in view.compared:
        if one.kind == "baseline" and one.value is not None:
            assert named(history, one.name)["y"] == [one.value, one.value]
            mark = named(area, one.name)
            assert (mark["x"], mark["y"]) == ([one.area_mm2], [one.value])


def test_the_front_is_what_nothing_dominates(view: StudyView) -> None:
    """Along the front both area and value rise, and no trial lies above it."""
    front = named(plot(view, "area"), "front")
    assert front["x"] == sorted(front["x"])
    assert front["y"] == sorted(set(front["y"]))
    for trial in view.summary.records:
        if trial.rank is not None and trial.metrics is not None:
            reached = [
                value
                for area, value in zip(front["x"], front["y"], strict=True)
                if area <= (trial.metrics.area_mm2 or 0.0)
            ]
            assert max(reached) >= trial.metrics.value


def test_breakdown_adds_up(view: StudyView) -> None:
    """The parts of every bar sum to the time of the batch."""
    figure = plot(view, "breakdown")
    bars = figure["data"][0]["y"]
    assert bars[0] == "best" and "tpuv4-lanes" in bars
    unit_s = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
    title = figure["layout"]["xaxis"]["title"]["text"]
    scale = unit_s[title[title.index("[") + 1 : -1]]
    for place, note in enumerate(figure["layout"]["annotations"]):
        whole = sum(trace["x"][place] for trace in figure["data"])
        assert note["x"] > 0 and whole * scale > 0


def test_a_minimised_objective_falls(tmp_path: Path) -> None:
    """The best so far of an energy goes down."""
    study = run_study(tmp_path, objectives=("energy_per_sample",))
    line = named(plot(view_of(study), "history"), "best so far")
    assert line["y"] == sorted(line["y"], reverse=True)


def test_names_are_text(tmp_path: Path) -> None:
    """Neither a tag nor a control character of a name reaches a figure."""
    space = Space.phaze(microbatch=(2, 2), recompute=["none"])
    study = run_study(tmp_path, trials=12, model=HOSTILE, space=space)
    text = json.dumps(all_plots(view_of(study)), ensure_ascii=False)
    assert "<script>" not in text and "\x1b" not in text


def test_without_trials_a_plot_says_so(tmp_path: Path) -> None:
    """An empty study has figures with a sentence."""
    for figure in all_plots(view_of(run_study(tmp_path, trials=0))).values():
        (note,) = figure["layout"]["annotations"]
        assert figure["data"] == [] and note["text"].endswith(".")


def test_importance_finds_what_decides(view: StudyView) -> None:
    """Shares lie between 0 and 1; size of the HBM, which the toy model ignores, decides nothing."""
    found = importances(view)
    assert all(0.0 <= share <= 1.0 for share in found.values())
    assert found["hbm_gib"] < max(found.values())


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_explained_variance_of_known_cases(seed: int, groups: int) -> None:
    """A value that the group fixes is explained in whole; chance explains little."""
    draw = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(groups), draw.integers(0, groups, 40)])
    logs = codes.astype(float)
    whole = float(((logs - logs.mean()) ** 2).sum())
    assert _explained(logs, codes, whole) == pytest.approx(1.0)
    assert _explained(logs, np.zeros_like(codes), whole) == 0.0
    noise = draw.normal(size=len(codes))
    assert _explained(noise, codes, float(((noise - noise.mean()) ** 2).sum())) < 0.5


@given(st.integers(0, 5_000), st.integers(1, 300))
def test_thinned_keeps_order_and_the_last(length: int, most: int) -> None:
    """At most so many items stay, in order, the last one among them."""
    kept = thinned(range(length), most)
    assert len(kept) == min(length, most) and kept == sorted(set(kept))
    assert not length or kept[-1] == length - 1

"""Passes that wait for the host, and what fewer launches bring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.evaluation import evaluate_one
from phaze_opt.explanation.explain import explain_point, explanation_to_json_dict
from phaze_opt.passes.launches import launch_seconds
from phaze_opt.point import Point
from phaze_opt.report.explanation_words import explanation_sentences
from phaze_opt.workload.zoo import load_workload, model_loader
from tests.passes.test_launches import SMALL, point

WIDE = "gpt:layers=2,hidden=4096,heads=32,sequence=2048,vocab=512"


def words(of: Point) -> str:
    """Return the sentences that a person reads."""
    return " ".join(explanation_sentences(explain_point(of, model_loader(SMALL), {})))


def test_passes_that_wait_are_named_with_what_they_wait_for() -> None:
    """Every launch of a named pass takes its seconds, and the kernels take less."""
    explanation = explain_point(point("eager"), model_loader(SMALL), {})
    assert {each.layer for each in explanation.host_bound} >= {"block"}
    each_s = launch_seconds().central_s
    for each in explanation.host_bound:
        assert each.host_s == pytest.approx(each.launches * each_s)
        assert each.device_s < each.host_s
    plain = explanation_to_json_dict(explanation)
    assert len(plain["host_bound"]) == len(explanation.host_bound)
    assert set(explanation.range_by_rate_s) == {"arrays", "hbm", "host"}
    assert "The device waits for the host in" in words(point("eager"))


def test_what_graphs_would_bring_is_an_evaluation() -> None:
    """The gain is that of evaluating the run with the option."""
    explanation = explain_point(point("eager"), model_loader(SMALL), {})
    gains = {gain.options: gain for gain in explanation.launch_gains}
    assert set(gains) == {("--launch compiled",), ("--launch graphs",)}
    recorded = evaluate_one(point("graphs"))
    assert gains["--launch graphs",].time_per_batch_s == recorded.time_per_batch_s
    assert gains["--launch graphs",].throughput_gain > 0.0


def test_long_kernels_wait_for_nobody() -> None:
    """Neither does what starts recorded graphs."""
    long = replace(point("eager"), workload=load_workload(WIDE))
    explanation = explain_point(long, model_loader(WIDE), {})
    assert "block" not in {each.layer for each in explanation.host_bound}
    recorded = explain_point(point("graphs"), model_loader(SMALL), {})
    assert not recorded.host_bound and not recorded.launch_gains
    assert "waits for the host" not in words(point("graphs"))

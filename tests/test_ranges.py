"""The time per batch on other chips of the same name."""

from __future__ import annotations

import json

import pytest

from phaze_opt.evaluation import Evaluation, evaluate_one, with_range
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.explanation.explain import explain
from phaze_opt.named_point import named_point
from phaze_opt.report.explanation_words import explanation_sentences
from phaze_opt.report.layout import to_text
from phaze_opt.report.tables import evaluation_tables
from phaze_opt.training import Training

MODEL = "llama:layers=2,hidden=2048,heads=16,ffn=8192,sequence=2048,vocab=32000"
RUN = Training(64, 2, optimizer="adam")


def ranged(model: str, chip: str, cluster: str, training: Training) -> Evaluation:
    """Evaluate a run on eight replicas, with its range."""
    point = named_point(model, chip, cluster, training, (1, 8, 1), devices=8).point
    return with_range(point, evaluate_one(point))


def test_a_range_holds_the_time_and_is_at_most_15_percent() -> None:
    """It is printed, written and read back; chips on paper have none."""
    found = ranged(MODEL, "b200", "dgx-b200", RUN)
    central_s, span_s = found.time_per_batch_s, found.time_per_batch_range_s
    assert central_s is not None
    assert span_s is not None
    assert 0.85 * central_s <= span_s[0] < central_s < span_s[1] <= 1.151 * central_s
    assert span_s[1] > 1.05 * central_s
    assert "±" in to_text(evaluation_tables(found, "run"))
    plain = evaluation_to_json_dict(found)
    assert list(plain["time_per_batch_range_s"]) == list(span_s)
    assert evaluation_from_json_dict(json.loads(json.dumps(plain))) == found
    paper = ranged(MODEL, "tpuv4-lanes", "flat-4GiB", RUN)
    assert paper.time_per_batch_range_s is None


def test_an_explanation_says_which_rate_a_range_comes_from() -> None:
    """Each rate by itself moves the time less than both; products move it more than the HBM."""
    found = explain(MODEL, "b200", "dgx-b200", RUN, (1, 8, 1), devices=8)
    least_s, most_s = found.evaluation.time_per_batch_range_s or (0.0, 0.0)
    spans = found.range_by_rate_s
    assert set(spans) == {"arrays", "hbm"}
    for low_s, high_s in spans.values():
        assert least_s <= low_s * (1 + 1e-9)
        assert high_s <= most_s * (1 + 1e-9)
    assert spans["arrays"][1] - spans["arrays"][0] > spans["hbm"][1] - spans["hbm"][0]
    (words,) = [one for one in explanation_sentences(found) if "chips of this name" in one]
    assert words.index("arrays in long runs") < words.index("the HBM")


def test_what_does_not_fit_has_no_range() -> None:
    """There is no time."""
    found = ranged("gpt3-175b", "b200", "dgx-b200", Training(8, 1))
    assert not found.feasible
    assert found.time_per_batch_range_s is None
    assert pytest.approx(0.0) == found.throughput_samples_per_s

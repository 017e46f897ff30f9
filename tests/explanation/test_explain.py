"""The explanation as a whole, and as data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from phaze_opt.estimator.estimate import RESOURCES
from phaze_opt.evaluation_json import evaluation_to_json_dict
from phaze_opt.explanation.changes import changes
from phaze_opt.explanation.explain import explain, explain_point, explanation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Point
from phaze_opt.training import Training
from tests.explanation.cases import crowded, evaluated, load_tiny, tiny


def some_point(accelerator: str = "tpuv4-lanes") -> Point:
    """Return a point with recompute, two levels of network, and all three degrees."""
    return Point(
        tiny(microbatch=2),
        load_accelerator(accelerator),
        load_cluster("dgx-a100", 16),
        Training(16, 2, "selective", "adam"),
        (2, 2, 4),
    )


def test_the_record_is_that_of_evaluate_and_more() -> None:
    """Every key of ``evaluate`` is there with its value; the reasons are beside them."""
    point = some_point()
    explanation = explain_point(point, load_tiny, {})
    plain = explanation_to_json_dict(explanation)
    json.dumps(plain, allow_nan=False)
    own = evaluation_to_json_dict(evaluated(point))
    for key, value in own.items():
        if key != "layers":
            assert plain[key] == value
    for layer, reference in zip(plain["layers"], own["layers"], strict=True):
        assert {key: layer[key] for key in reference} == reference
        for name in ("forward", "backward", "recompute"):
            binding = layer[f"{name}_binding"]
            assert binding["makespan_s"] == layer[f"{name}_s"]
            assert binding["bound_s"].keys() == binding["share"].keys() == set(RESOURCES)
            assert sum(binding["bound_s"].values()) == pytest.approx(binding["makespan_s"])
            assert binding["schedule_s"] == sum(binding["idle_s"].values())
    assert plain["fixes"] == []
    assert plain["memory"]["excess_bytes"] < 0.0
    kinds = {"parameters", "gradients", "optimizer", "stash", "transient"}
    assert plain["memory"]["bytes_by_kind"].keys() == kinds
    assert sum(plain["stage_time"]["parts_s"].values()) == pytest.approx(plain["time_per_batch_s"])


@pytest.mark.parametrize("accelerator", ["tpuv4-phaze", "a100-80"])
def test_what_a_pass_would_save_is_what_it_saves(accelerator: str) -> None:
    """The saving of every pass is that of an evaluation with a tenth more of the resource."""
    point = some_point(accelerator)
    layers = explain_point(point, load_tiny, {}).layers
    for change in changes(point):
        resource, changed = change.resource, change.point
        result = evaluated(changed)
        for binding, layer in zip(layers, result.layers, strict=True):
            for explained, seconds in (
                (binding.forward, layer.forward_s),
                (binding.backward, layer.backward_s),
            ):
                saved_s = explained.saving[resource] * explained.makespan_s
                assert saved_s == pytest.approx(explained.makespan_s - seconds, abs=1e-12)


def test_what_does_not_fit_is_explained_too() -> None:
    """Layers are bound all the same; memory says what is over, and fixes follow."""
    point = some_point()
    small = replace(point, accelerator=replace(point.accelerator, hbm_bytes=500_000))
    explanation = explain_point(small, load_tiny, {})
    assert not explanation.evaluation.feasible
    assert explanation.stage is None and explanation.gains == ()
    assert explanation.memory is not None and explanation.memory.stage is None
    assert explanation.memory.excess_bytes > 0.0
    assert explanation.fixes
    assert all(layer.forward.critical_path for layer in explanation.layers)
    plain = explanation_to_json_dict(explanation)
    json.dumps(plain, allow_nan=False)
    assert plain.keys() == explanation_to_json_dict(explain_point(point, load_tiny, {})).keys()
    # With too many degrees for the devices memory is not the reason.
    crowd = replace(point, placement=(4, 2, 4))
    assert explain_point(crowd, load_tiny, {}).memory is None


def test_the_same_point_is_explained_the_same_way() -> None:
    """Two explanations without a shared cache are equal in every bit."""
    assert explain_point(some_point(), load_tiny, {}) == explain_point(some_point(), load_tiny, {})


def test_a_model_is_loaded_again_by_its_name_or_not_at_all() -> None:
    """Where the name says the shape all options are tried, of another model what was captured."""
    point = crowded(2_000_000, (1, 4, 1))
    arguments = (point.accelerator, point.cluster, point.training, point.placement)
    by_name = explain(point.workload, *arguments)
    assert by_name == explain_point(point, load_tiny, {})
    assert ("microbatch",) in {fix.kinds for fix in by_name.fixes}
    own = replace(point.workload, model="package.module:make")
    captured = explain(own, *arguments)
    assert captured.evaluation == by_name.evaluation
    tried = {fix.kinds for fix in captured.fixes}
    assert ("recompute",) in tried and ("microbatch",) not in tried

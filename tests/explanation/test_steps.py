"""Changes of a training run that take less memory."""

from __future__ import annotations

from phaze_opt.explanation.steps import (
    applied,
    changed_options,
    given_degrees,
    pairs,
    single_steps,
    strongest,
)
from tests.explanation.cases import crowded


def test_single_changes_are_those_that_a_point_allows() -> None:
    """Recompute, ZeRO, tensor degree, depth, microbatch, split sequence, placement, schedule."""
    point = crowded(10**6, (2, 2, 1), pipeline_schedule="gpipe")
    steps = list(single_steps(point))
    options = [changed_options(point, applied(point, step)) for step in steps]
    assert options == [
        ("--recompute selective",),
        ("--recompute full",),
        ("--zero 1",),
        ("--zero 2",),
        ("--zero 3",),
        ("--sequence-parallel",),
        ("--microbatch 2",),
        ("--microbatch 1",),
        ("--pipeline-schedule 1f1b",),
        ("--placement 2x2x2",),
        ("--placement 2x2x4",),
        ("--placement 2x1x8",),
        ("--placement 4x2x1",),
        ("--placement solve",),
    ]
    together = [{first.kind, second.kind} for first, second in pairs(steps)]
    assert all(len(both) == 2 for both in together)
    assert {"placement", "tensor"} not in together
    assert {step.kind for step in strongest(steps)} == {
        "recompute", "zero", "sequence_parallel", "microbatch", "pipeline_schedule", "placement",
    }  # fmt: skip
    full = crowded(10**6, "solve", recompute="full", zero=3, microbatch=1, sequence_parallel=True)
    assert list(single_steps(full)) == []


def test_degrees_keep_as_many_replicas_as_the_devices_hold() -> None:
    """A wider group or deeper pipeline takes devices from the replicas, and no more than that."""
    point = crowded(10**6, (2, 4, 2))
    for step in single_steps(point):
        if step.kind in ("tensor", "pipeline"):
            degrees = given_degrees(applied(point, step))
            assert degrees.devices <= point.cluster.devices
            assert degrees.data <= 4


def test_weights_in_fp8_alone_are_a_change_where_linear_layers_are_in_fp8() -> None:
    """With an optimizer that holds master weights, and once."""
    options = ("--fp8-primary-weights",)
    for changes, offered in (
        ({"optimizer": "adam", "precision": "mxfp8"}, True),
        ({"optimizer": "sgd", "precision": "mxfp8"}, False),
        ({"optimizer": "adam"}, False),
        ({"optimizer": "adam", "precision": "fp8", "fp8_primary_weights": True}, False),
    ):
        point = crowded(10**6, (2, 2, 1), **changes)
        found = [changed_options(point, applied(point, step)) for step in single_steps(point)]
        assert (options in found) == offered

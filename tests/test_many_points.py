"""Evaluating many points at once changes nothing but the time it takes."""

import json
from dataclasses import replace
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import PipelineScheduleName
from phaze_opt.evaluation import Evaluation, evaluate_many, evaluate_one
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Placing, Point
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload


@cache
def workload(model: str) -> Workload:
    """Capture a small model."""
    return load_workload(model, tensor_parallel=(1, 2), microbatch=(1,))


MODELS = (
    "gpt:layers=4,hidden=256,heads=4,sequence=128,vocab=1024",
    "gpt:layers=3,hidden=128,heads=2,sequence=64,vocab=512",
)


@st.composite
def points(draw: st.DrawFn) -> Point:
    """Points that differ in anything."""
    name = draw(st.sampled_from(["tpuv4-phaze", "tpuv4-phaze", "a100-80"]))
    fields = {}
    if name == "tpuv4-phaze":
        fields = {
            "num_tc": 2 ** draw(st.integers(0, 4)),
            "num_vc": 2 ** draw(st.integers(0, 4)),
            "pe_x": 2 ** draw(st.integers(3, 7)),
        }
    chip = load_accelerator(name, **fields)
    if draw(st.sampled_from([False, False, True])):
        # Nothing fits.
        chip = replace(chip, hbm_bytes=2**20)
    schedule: PipelineScheduleName = draw(st.sampled_from(["1f1b", "gpipe", "interleaved"]))
    training = Training(
        16,
        1,
        draw(st.sampled_from(["none", "full", "selective"])),
        residency=draw(st.booleans()),
        overlap=draw(st.sampled_from(["none", "partial", "data", "experts", "all"])),
        launch=draw(st.sampled_from(["graphs", "eager"])),
        zero=draw(st.sampled_from([0, 0, 1, 2, 3])),
        pipeline_schedule=schedule,
        interleave=2 if schedule == "interleaved" else 1,
    )
    placing: Placing = draw(st.sampled_from(["solve", (1, 2, 2)]))
    return Point(
        workload(draw(st.sampled_from(MODELS))),
        chip,
        load_cluster("flat-4GiB", 8),
        training,
        placing,
        lane_rate=draw(st.sampled_from([1.0, 1.0, 0.5])),
    )


def alone(point: Point) -> Evaluation:
    """Evaluate a point by itself."""
    return evaluate_one(point)


@settings(max_examples=20, deadline=None)
@given(many=st.lists(points(), max_size=5))
def test_equals_each_alone(many: list[Point]) -> None:
    """Each is that of its point by itself, bit for bit, in the order of the points, and as JSON."""
    found = evaluate_many(many)
    together = [evaluation_to_json_dict(one) for one in found]
    assert together == [evaluation_to_json_dict(alone(point)) for point in many]
    assert found == [evaluation_from_json_dict(json.loads(json.dumps(one))) for one in together]

"""A run on several kinds of device."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.codec import to_json
from phaze_opt.device_kinds import DeviceKind, evaluate_kinds
from phaze_opt.economics.choices import Economics
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate, evaluate_one
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.hardware.presets import load_accelerator, read_kinds
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.more_hardware import QUICK

CACHE: dict[str, Schedule] = {}
A100, H100 = load_accelerator("a100-80"), load_accelerator("h100")


def point(devices: int, cluster: str = "dgx-a100", **options: Any) -> Point:
    """Return a run of a small model whose batch has work for few replicas."""
    training = Training(**{"global_batch": 4, "microbatch": 1, "optimizer": "adam", **options})
    workload = load_workload(QUICK, microbatch=(1,), tensor_parallel=(1, 2))
    return Point(workload, A100, load_cluster(cluster, devices), training)


def kinds(a100: int, h100: int) -> list[DeviceKind]:
    """Return so many devices of two kinds."""
    return [DeviceKind("a100-80", A100, a100), DeviceKind("h100", H100, h100)]


def run(a100: int, h100: int, cluster: str = "dgx-a100", **options: Any) -> Evaluation:
    """Evaluate on two kinds."""
    return evaluate_kinds(point(a100 + h100, cluster, **options), kinds(a100, h100), CACHE)


def test_equal_chips_are_one_kind() -> None:
    """Under two names too, to the bit, with every number of the evaluation."""
    whole = point(24)
    named = [DeviceKind("new", A100, 8), DeviceKind("old", A100, 16)]
    found = evaluate(whole.workload, A100, whole.cluster, whole.training, cache=CACHE)
    assert evaluate_kinds(whole, named, CACHE) == found


def test_a_pipeline_over_two_kinds() -> None:
    """What is said of it adds up, and both kinds together are faster than each alone."""
    found = run(1, 1, "tpuv4-ici-flat", global_batch=32)
    placement = found.placement
    assert placement is not None and found.accelerators is not None
    assert set(found.accelerators) == {"a100-80", "h100"} and placement.devices == 2
    for chip in (A100, H100):
        alone = evaluate_one(replace(point(1, global_batch=32), accelerator=chip), CACHE)
        assert found.throughput_samples_per_s > alone.throughput_samples_per_s
    held = dict(zip(found.accelerators, map(len_of, placement.stages), strict=True))
    assert held["h100"] >= held["a100-80"]
    assert sum(layer.count for layer in found.layers) == sum(held.values())
    assert all(layer.name.endswith((" on a100-80", " on h100")) for layer in found.layers)
    assert sum(found.time_breakdown_s.values()) == pytest.approx(found.time_per_batch_s)
    mean_peak = (A100.peak_flops_per_s + H100.peak_flops_per_s) / 2
    assert found.tflops_per_device is not None
    assert found.mfu == pytest.approx(found.tflops_per_device * 1e12 / mean_peak)
    assert found.area_mm2 is None and found.tdp_w is None and found.power_w_per_device > 0.0
    plain = json.loads(to_json(evaluation_to_json_dict(found)))
    assert plain["accelerators"] == list(found.accelerators)
    assert evaluation_from_json_dict(plain) == found


def len_of(stage: Any) -> int:
    """Count the layers of a stage."""
    return len(stage.layers)


def test_energy_is_that_of_each_kind() -> None:
    """On one kind of two, it is what a run on that kind alone takes."""
    found, alone = run(8, 8), None
    for count, chip in ((8, A100), (8, H100)):
        own = evaluate_one(replace(point(count), accelerator=chip), CACHE)
        if found.accelerators and own.time_per_batch_s == found.time_per_batch_s:
            alone = own
    assert alone is not None and len(set(found.accelerators or ())) == 1
    assert found.energy_by_level_j == alone.energy_by_level_j
    assert found.unused_devices == 8 + alone.unused_devices
    assert found.placement is not None and alone.placement is not None
    assert found.placement.stages == alone.placement.stages


def test_more_devices_of_a_kind_are_never_slower() -> None:
    """They may stay unused."""
    for a100, h100 in ((8, 8), (16, 8)):
        fewer = run(a100, h100).throughput_samples_per_s
        assert run(a100 + 8, h100).throughput_samples_per_s >= fewer
        assert run(a100, h100 + 8).throughput_samples_per_s >= fewer


def test_nothing_fits() -> None:
    """The reason names the kind that is nearest to fitting."""
    small = [
        replace(kind, accelerator=kind.accelerator.with_memory_bytes(2**20)) for kind in kinds(8, 8)
    ]
    found = evaluate_kinds(point(16), small, CACHE)
    assert not found.feasible and found.reason is not None
    assert found.reason.startswith("Nothing fits over a100-80 and h100; on ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interleave": 2, "pipeline_schedule": "interleaved"}, "do not go with interleave;"),
        ({"pipeline_schedule": "zb-h1"}, "do not go with pipeline_schedule zb-h1;"),
        ({"context_parallel": 2}, "expert_tensor_parallel or context_parallel;"),
        ({"recompute": "solve"}, "do not go with recompute solve;"),
        ({"zero": 1, "zero_group": 2}, "do not go with zero_group;"),
        ({"cluster": "tpuv4-torus"}, "'tpuv4-torus' is one torus"),
        ({"a100": 12}, "12 devices of a100-80, but those of a kind must fill whole nodes of 8"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], words: str) -> None:
    """Is refused in one sentence."""
    with pytest.raises(InputError) as refused:
        run(**{"a100": 8, "h100": 8, **options})
    assert words in str(refused.value)


def test_numbers_of_devices_add_up() -> None:
    """And each kind has some."""
    for counts in ((8, 16), (24, 0)):
        with pytest.raises(InputError, match=r"devices is 16|at least 1"):
            evaluate_kinds(point(16), kinds(*counts))
    third = DeviceKind("tpuv4", load_accelerator("tpuv4"), 8)
    with pytest.raises(InputError, match="a100-80, h100, tpuv4, but a pipeline is over at most 2"):
        evaluate_kinds(point(24), [*kinds(8, 8), third])
    with pytest.raises(InputError, match="a given placement"):
        evaluate_kinds(replace(point(16), placement=(2, 4, 2)), kinds(8, 8))
    with pytest.raises(InputError, match="power_limit_w"):
        evaluate_kinds(replace(point(16), power_limit_w=1e3), kinds(8, 8))
    with pytest.raises(InputError, match="economics"):
        evaluate_kinds(replace(point(16), economics=Economics(margin=7.0)), kinds(8, 8))


def test_text_of_kinds() -> None:
    """A name alone, or a path, is one kind; where one is expected, several are refused."""
    assert read_kinds("a100-80=64,h100=32") == [("a100-80", 64), ("h100", 32)]
    assert [read_kinds(text) for text in ("h100", "a=1.toml", "a=1,b", "=1")] == [[]] * 4
    with pytest.raises(InputError, match="several kinds of device, which only the command eval"):
        load_accelerator("a100-80=64,h100=32")

"""A tenth more of each resource: every gain is an evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.evaluation import Evaluation, evaluate, place_point
from phaze_opt.explanation.changes import LESS, MORE, changes, more_overlap
from phaze_opt.explanation.explain import explain_point
from phaze_opt.explanation.gains import Gain, gains, try_changes
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.network.level_values import NETWORK, with_level_values
from phaze_opt.network.presets import load_cluster
from phaze_opt.point import Placing, Point, cost_point
from phaze_opt.report.explanation_words import gain_words
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.explanation.cases import TINY, TINY_LLAMA, evaluated, load_tiny, tiny


def run(
    placement: Placing,
    accelerator: str = "tpuv4-lanes",
    cluster: str = "dgx-a100",
    power_limit_w: float | None = None,
    **options: Any,
) -> tuple[Point, Evaluation, tuple[Gain, ...]]:
    """Evaluate a small point and try a tenth more of everything."""
    point = Point(
        tiny(microbatch=1),
        load_accelerator(accelerator),
        load_cluster(cluster, 16),
        Training(16, 1, optimizer="adam", **options),
        placement,
        power_limit_w=power_limit_w,
    )
    cache: dict[str, Schedule] = {}
    costed = cost_point(point, cache)
    base = place_point(costed)
    return point, base, gains(try_changes(changes(point), cache), base)


PLACEMENTS: list[tuple[Placing, dict[str, Any]]] = [
    ("solve", {}),
    ("solve", {"recompute": "full", "zero": 3}),
    ((2, 4, 2), {}),
    ((1, 4, 4), {"zero": 1}),
    ((2, 2, 1), {"pipeline_schedule": "interleaved", "interleave": 2}),
]


@pytest.mark.parametrize(
    ("placement", "options", "accelerator"),
    [
        (*run, ("tpuv4-lanes", "a100-80")[index % 2])
        for index, run in enumerate([*PLACEMENTS, PLACEMENTS[0]])
    ],
)
def test_every_gain_is_that_of_an_evaluation(
    placement: Placing, options: dict[str, Any], accelerator: str
) -> None:
    """Evaluating with the changed accelerator or network gives the predicted gain to 1e-12."""
    point, base, measured = run(placement, accelerator, **options)
    assert base.time_per_batch_s is not None
    by_resource = {gain.resource: gain for gain in measured}
    for change in changes(point):
        result = evaluated(change.point)
        gain = by_resource.pop(change.resource)
        speedup = result.throughput_samples_per_s / base.throughput_samples_per_s
        assert gain.throughput_gain == pytest.approx(speedup - 1.0, abs=1e-12)
        assert gain.factor == change.factor
        assert gain.time_per_batch_s == result.time_per_batch_s
        if placement != "solve":
            assert gain.same_placement_gain == pytest.approx(gain.throughput_gain, abs=1e-12)
    assert not by_resource


def test_changes_are_of_one_resource_each() -> None:
    """Rates other than the changed one stay: bytes per second, lanes per second, clock."""
    point, _, _ = run((1, 4, 4), "a100-80")

    def rates(changed: Point) -> dict[str, float]:
        chip = changed.accelerator
        lanes = chip.num_vc * chip.pe_vc * chip.sustained_clock_hz * changed.lane_rate
        return {
            "compute": chip.num_tc * chip.pe_x * chip.pe_y * chip.sustained_clock_hz,
            "lanes": lanes,
            "glb": chip.glb_bytes_per_cycle * chip.sustained_clock_hz,
            "hbm": chip.sustained_hbm_bytes_per_s,
            "hbm_size": chip.hbm_bytes,
            "link_0": changed.cluster.levels[0].sustained_bytes_per_s,
            "link_1": changed.cluster.levels[1].sustained_bytes_per_s,
            "network_latency": changed.cluster.levels[1].latency_s,
            "overhead": chip.calibration.operator_overhead_s,
        }

    before = rates(point)
    seen = set()
    for change in changes(point):
        resource, factor, changed = change.resource, change.factor, change.point
        together = {"clock": {"compute", "lanes", "glb"}}.get(resource, {resource})
        expected = {name: factor if name in together else 1.0 for name in before}
        ratios = {name: rate / before[name] for name, rate in rates(changed).items()}
        assert ratios == pytest.approx(expected, rel=1e-9)
        seen.add(resource)
    assert seen == {*before, "clock"}


def test_the_largest_gain_comes_first_and_finding_anew_is_never_worse() -> None:
    """Gains fall, and the placement that is found anew is no slower than the old one."""
    _, base, measured = run("solve")
    assert base.feasible
    values = [gain.throughput_gain for gain in measured]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.0
    for gain in measured:
        assert gain.throughput_gain >= gain.same_placement_gain - 1e-9
        assert gain.placement is not None
        assert gain.factor in (MORE, LESS)


def test_a_power_limit_may_stand_in_the_way() -> None:
    """What would take too much power brings nothing, and says so."""
    _, base, _ = run((1, 4, 4))
    limit_w = base.power_w_per_device * 1.0001
    _, limited, measured = run((1, 4, 4), power_limit_w=limit_w)
    assert limited.feasible
    fastest = max(measured, key=lambda gain: gain.same_placement_gain)
    assert not fastest.feasible
    assert fastest.throughput_gain == 0.0 and fastest.time_per_batch_s is None
    assert fastest.same_placement_gain > 0.0


def test_nothing_is_gained_from_what_does_not_fit() -> None:
    """Without a placement there are no gains."""
    point = Point(
        tiny(microbatch=1),
        Accelerator(4, 4, 32, 32, 32, 2**24, hbm_bytes=100_000),
        load_cluster("dgx-a100", 16),
        Training(16, 1),
    )
    costed = cost_point(point, {})
    assert gains(try_changes(changes(point), {}), place_point(costed)) == ()


def test_more_overlap_is_tried_by_evaluating_with_it() -> None:
    """Each further kind of overlap gives what an evaluation with it gives."""
    point, base, _ = run((1, 4, 4), overlap="none", zero=3)
    measured = gains(try_changes(more_overlap(point), {}), base)
    assert {gain.resource for gain in measured} == {"overlap_data", "overlap_all"}
    by_resource = {gain.resource: gain for gain in measured}
    for change in more_overlap(point):
        gain = by_resource[change.resource]
        assert evaluated(change.point).time_per_batch_s == gain.time_per_batch_s
        assert gain.throughput_gain > 0.0
    everything, _, _ = run((1, 4, 4), overlap="all")
    assert list(more_overlap(everything)) == []
    split = Training(8, 1, pipeline_schedule="zb-h1", overlap="none", expert_parallel=2)
    allowed = more_overlap(replace(point, training=split))
    assert [change.resource for change in allowed] == ["overlap_data"]


def test_the_explanation_says_what_is_hidden() -> None:
    """Nothing is hidden twice, and more is hidden with more overlap."""
    hidden: list[float] = []
    for overlap in ("none", "data", "all"):
        point, _, _ = run((2, 2, 4), "a100-80", "tpuv4-ici-flat", overlap=overlap)
        stage = explain_point(point, load_tiny, {}).stage
        assert stage is not None
        by_kind = {each.kind: each for each in stage.communication}
        assert set(by_kind) == {"tensor_collectives", "transfer", "gradient_synchronisation"}
        assert all(each.hidden_s >= -1e-12 for each in stage.communication)
        assert all(each.sent_bytes > 0.0 for each in stage.communication)
        hidden.append(sum(each.hidden_s for each in stage.communication))
    # So small a model sends all its gradients at once, whatever may overlap.
    assert hidden[0] <= hidden[1] < hidden[2]


def _settings(options: Sequence[str]) -> tuple[dict[str, str], dict[str, object]]:
    """Read ``--set`` options as the command line does: of the chip, and of the network."""
    pairs = dict(option.removeprefix("--set ").split("=") for option in options)
    network = {name: float(value) for name, value in pairs.items() if name.startswith(NETWORK)}
    return {name: value for name, value in pairs.items() if name not in network}, {**network}


# As many as have no common divisor: every network meets both models.
NETWORKS = itertools.cycle(["dgx-h100", "tpuv4-ici-flat", "tpuv4-torus", "mi300x-node"])
MODELS = itertools.cycle([TINY, TINY_LLAMA, TINY])


@pytest.mark.parametrize(
    ("name", "network", "model"), [*zip(accelerator_presets(), NETWORKS, MODELS, strict=False)]
)
def test_every_gain_equals_evaluate_at_the_setting_that_it_names(
    name: str, network: str, model: str
) -> None:
    """On every preset; what names no setting are arrays or lanes alone, and overlap is an option.

    The clock brings something wherever arrays or lanes bind: clocks under load follow it.
    """
    cluster = load_cluster(network, 8)
    workload = load_workload(model, tensor_parallel=(2,), microbatch=(4,))
    training = Training(16, 4, optimizer="adam", overlap="none")
    point = Point(workload, load_accelerator(name), cluster, training, (2, 2, 2))
    by_resource = {gain.resource: gain for gain in explain_point(point, load_tiny, {}).gains}
    for resource, gain in by_resource.items():
        assert (not gain.options) == (resource in ("compute", "lanes"))
        if gain.options:
            of_chip, of_network = _settings(gain.options)
            result = evaluate(
                workload,
                load_accelerator(name, **of_chip),
                with_level_values(cluster, of_network, "test"),
                training,
                (2, 2, 2),
            )
            assert result.time_per_batch_s == gain.time_per_batch_s
    assert by_resource["clock"].throughput_gain > 0.0
    assert {f"link_{index}" for index in range(len(cluster.levels))} < by_resource.keys()


def test_leaf_switches_with_less_taper_are_a_gain() -> None:
    """Where the links above them are what replicas wait for, and as evaluating with it says."""
    tree = {"network.1.topology": "fat-tree", "network.1.taper": 4.0, "network.1.leaf_devices": 8}
    cluster = with_level_values(load_cluster("dgx-h100", 16), tree, "test")
    workload = load_workload(TINY, tensor_parallel=(1,), microbatch=(1,))
    training = Training(16, 1, optimizer="adam", overlap="none")
    point = Point(workload, load_accelerator("h100"), cluster, training, (2, 8, 1))
    (gain,) = [
        gain for gain in explain_point(point, load_tiny, {}).gains if gain.resource == "taper_1"
    ]
    assert gain.options == ("--set network.1.taper=3.6",)
    less = with_level_values(cluster, {"network.1.taper": 3.6}, "test")
    result = evaluate(workload, point.accelerator, less, training, (2, 8, 1))
    assert result.time_per_batch_s == gain.time_per_batch_s
    assert gain_words(gain.resource) == "network level 1 taper −10 %"

"""What is left of a run on a degraded cluster."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.codec import to_json
from phaze_opt.degraded import Degradation, Degraded
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.network.presets import load_cluster
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.workload.zoo import load_workload
from tests.more_hardware import QUICK

CACHE: dict[str, Schedule] = {}
CHIP, DEVICES = "h100", 32


def run(degrade: Degradation | None = None, placement: str = "solve", **options: Any) -> Evaluation:
    """Evaluate a small model on four nodes."""
    training = Training(**{"global_batch": 48, "microbatch": 1, **options})
    cluster = load_cluster("dgx-h100", DEVICES)
    workload = load_workload(QUICK, microbatch=(1,), tensor_parallel=(1, 2))
    return evaluate(workload, CHIP, cluster, training, placement, cache=CACHE, degrade=degrade)


def degraded(**options: Any) -> Degraded:
    """Evaluate it on a degraded cluster; options of the degradation, and of the training."""
    names = Degradation.__dataclass_fields__
    own = Degradation(**{name: options.pop(name) for name in names if name in options})
    found = run(own, **options).degraded
    assert found is not None
    return found


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "placement": st.sampled_from(["solve", "2x8x2", "4x3x2", "1x32x1", "2x16x1"]),
        "pipeline_schedule": st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved"]),
        "zero": st.sampled_from([0, 1]),
        "optimizer": st.sampled_from(["sgd", "adam"]),
    },
).map(lambda own: own | ({"interleave": 2} if "interleaved" in own.values() else {}))


@settings(max_examples=6, deadline=None)
@given(options=OPTIONS)
def test_to_degrade_nothing_changes_nothing(options: dict[str, Any]) -> None:
    """As it stands the run is what it was, to the bit, and all else of the evaluation is, too."""
    plain = run(**options)
    same = run(Degradation(), **options)
    assert replace(same, degraded=None) == plain
    if plain.placement is None:
        assert same.degraded is None
        return
    assert same.degraded is not None
    assert same.degraded.throughput_samples_per_s == plain.throughput_samples_per_s
    assert (same.degraded.loss, same.degraded.degrees) == (0.0, plain.placement.degrees_text)
    assert same.degraded.replaced.throughput_samples_per_s >= plain.throughput_samples_per_s
    if options.get("placement", "solve") == "solve":
        assert same.degraded.replaced.loss == 0.0


@settings(max_examples=8, deadline=None)
@given(
    options=OPTIONS,
    of_link=st.booleans(),
    shares=st.tuples(*[st.sampled_from([0.3, 0.5, 0.8, 0.99, 1.0])] * 2),
)
def test_a_slower_device_is_never_faster(
    options: dict[str, Any], of_link: bool, shares: tuple[float, float]
) -> None:
    """Neither as it stands nor placed again; the same holds of its links."""
    slower, faster = (
        run(Degradation(link=share) if of_link else Degradation(share), **options).degraded
        for share in sorted(shares)
    )
    if slower is None or faster is None:
        return
    assert slower.throughput_samples_per_s <= faster.throughput_samples_per_s
    assert slower.replaced.throughput_samples_per_s <= faster.replaced.throughput_samples_per_s * (
        1 + 1e-9
    )
    assert slower.replaced.throughput_samples_per_s >= slower.throughput_samples_per_s


@settings(max_examples=5, deadline=None)
@given(options=OPTIONS, lost=st.integers(1, 2))
def test_more_spare_nodes_are_never_slower(options: dict[str, Any], lost: int) -> None:
    """As many as are lost make the run whole, and a solved one is never better than that.

    Of a given one fewer replicas may be faster: they send less, with as many microbatches.
    """
    whole = run(**options)
    if whole.placement is None:
        return
    known = [degraded(lost_nodes=lost, spare_nodes=spare, **options) for spare in range(lost + 1)]
    for fewer, more in itertools.pairwise(known):
        assert fewer.replaced.throughput_samples_per_s <= more.replaced.throughput_samples_per_s * (
            1 + 1e-9
        )
        if options.get("placement", "solve") == "solve":
            assert fewer.throughput_samples_per_s <= more.throughput_samples_per_s * (1 + 1e-9)
            assert fewer.replaced.loss >= -1e-9
    assert known[-1].throughput_samples_per_s == whole.throughput_samples_per_s


def test_the_stage_of_the_slow_device_sets_the_pace() -> None:
    """With one stage all of the batch is slower, with several less: the others fill no slower."""
    training = {"optimizer": "sgd", "global_batch": 8}
    alone = degraded(slow_device=0.5, placement="1x1x1", **training)
    four = degraded(slow_device=0.5, placement="4x1x1", **training)
    assert alone.loss / 2 < four.loss < alone.loss <= 0.5
    # There are devices enough to do without the slow one.
    assert alone.replaced.loss <= 0.0


def test_a_slow_device_is_left_out_where_that_is_better() -> None:
    """Never worse than one device fewer, and than the same placement on a spare node."""
    slow = degraded(slow_device=0.1)
    assert slow.replaced.loss < 0.1 < slow.loss and slow.replaced.devices < DEVICES
    spare = degraded(slow_device=0.1, spare_nodes=1)
    assert (spare.loss, spare.replaced.loss) == (slow.loss, 0.0)


def test_the_stage_of_the_slow_device_has_fewer_layers() -> None:
    """Where that is the best placement, better than to leave the device out."""
    cluster = load_cluster("tpuv4-ici-flat", 2)
    workload = load_workload("bert-large", microbatch=(4,))
    slow = Degradation(slow_device=0.4)
    found = evaluate(workload, CHIP, cluster, Training(128, 4), cache=CACHE, degrade=slow).degraded
    assert found is not None and found.replaced.loss < min(found.loss, 0.5)
    assert found.replaced.degrees == "2x1x1" and len(set(found.replaced.stages)) == 2


def test_a_link_is_that_of_the_outermost_level_in_use() -> None:
    """By default; another level may be named, which does not matter if nothing goes over it."""
    inside = degraded(link=0.1, placement="1x4x2")
    assert inside == degraded(link=0.1, link_level=0, placement="1x4x2") and inside.loss > 0.0
    assert degraded(link=0.1, link_level=1, placement="1x4x2").loss == 0.0
    beyond = degraded(link=0.1, placement="1x16x2")
    assert beyond == degraded(link=0.1, link_level=1, placement="1x16x2") and beyond.loss > 0.0


def test_a_lost_node_takes_replicas() -> None:
    """The stages stay, with as many replicas as fit; where none does, a sentence says so."""
    lost = degraded(lost_nodes=1, placement="2x8x2", optimizer="adam", zero=1)
    assert (lost.degrees, lost.devices, len(lost.stages)) == ("2x6x2", 24, 2)
    assert 0.0 < lost.loss < 0.4
    unused = degraded(lost_nodes=2, placement="2x3x2")
    assert (unused.degrees, unused.loss) == ("2x3x2", 0.0)
    none = degraded(lost_nodes=3, placement="4x3x2", zero=1, zero_group=3)
    assert (none.throughput_samples_per_s, none.loss, none.degrees) == (0.0, 1.0, None)
    assert none.reason == "4x3x2 needs at least 24 devices, but 8 are left."
    assert none.replaced.reason == none.reason


def test_json_has_a_key_only_where_it_was_asked_for() -> None:
    """Without it nothing changes in the JSON."""
    assert "degraded" not in evaluation_to_json_dict(run())
    evaluation = run(Degradation(lost_nodes=1))
    plain = json.loads(to_json(evaluation_to_json_dict(evaluation)))
    assert evaluation_from_json_dict(plain).degraded == evaluation.degraded
    asked = plain["degraded"]
    assert asked.keys() >= {"throughput_samples_per_s", "loss", "replaced"}
    assert asked["replaced"]["throughput_samples_per_s"] >= asked["throughput_samples_per_s"] > 0.0


def test_what_a_cluster_does_not_have() -> None:
    """No such level, nothing left, no nodes."""
    with pytest.raises(InputError, match="link_level is 2, but the network of 'dgx-h100' has 2"):
        degraded(link=0.5, link_level=2)
    with pytest.raises(InputError, match="of 32 devices in nodes of 8 with 1 spare nodes, none"):
        degraded(lost_nodes=5, spare_nodes=1)
    with pytest.raises(InputError, match="'tpuv4-ici-flat' has one level, and no nodes"):
        training = Training(8, 1)
        lost = Degradation(lost_nodes=1)
        evaluate(QUICK, CHIP, "tpuv4-ici-flat", training, devices=8, degrade=lost)

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phaze_opt.choices import OptimizerName, Recompute
from phaze_opt.errors import InputError
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.evaluation_json import evaluation_from_json_dict, evaluation_to_json_dict
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.hardware.presets import accelerator_presets, load_accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.network.presets import load_cluster
from phaze_opt.optimizers import OPTIMIZERS
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.units import GIB
from phaze_opt.workload.capture.user_module import capture
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload


@pytest.fixture(scope="module")
def bert() -> Workload:
    """BERT-Large at two tensor degrees and two microbatches."""
    return load_workload("bert-large", tensor_parallel=(1, 2), microbatch=(1, 4))


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Sixty-four devices on a flat network."""
    return load_cluster("tpuv4-ici-flat", 64)


@pytest.fixture(scope="module")
def lanes() -> Accelerator:
    """Return the baseline with the lanes of the real chip."""
    return load_accelerator("tpuv4-lanes")


@pytest.fixture(scope="module")
def schedules() -> dict[str, Schedule]:
    """Schedules that the tests of this module share."""
    return {}


class Square(nn.Module):
    """A model without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a loss of the input alone."""
        return (x * x).mean()


@pytest.mark.parametrize("fused", [False, True])
def test_a_model_without_parameters_answers(fused: bool) -> None:
    """Nothing is stepped, added up or exchanged."""

    def make(microbatch: int) -> tuple[nn.Module, Tensor]:
        return Square(), torch.zeros(microbatch, 16, requires_grad=True)

    training = Training(4, 1, optimizer="adam", zero=1, fused_accumulation=fused)
    result = evaluate(capture(make, microbatch=(1,)), "h100", "flat-4GiB", training, devices=2)
    assert result.feasible and result.placement is not None
    assert result.time_breakdown_s["optimizer"] == 0.0
    assert not result.time_breakdown_s.get("gradient_accumulation")


WITHOUT_AREA = ("mi300x", "mi325x", "mi355x", "trainium2", "trainium3", "groq-lpu", "wse2", "wse3")
"""Chips with buffers outside the table of areas."""


@pytest.mark.parametrize("model", ["bert-large", "llama3-8b"])
def test_every_preset_answers(model: str) -> None:
    """Chips without an area too, on a network that holds them."""
    workload = load_workload(model)
    training = Training(64, 1, "full", "adam", zero=3)
    for name, preset in accelerator_presets().items():
        result = evaluate(workload, preset.accelerator, load_cluster("dgx-h100", 64), training)
        assert result.feasible == (name != "groq-lpu"), name  # 64 of which hold 14 GB together
        if not result.feasible:
            continue
        assert 0.0 < result.mfu < 1.0
        assert (result.area_mm2 is None) == (name in WITHOUT_AREA)


def test_rates_per_device_follow_from_the_throughput(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """Tokens and FLOP/s count all devices; full recompute runs a third of the FLOPs again."""
    plain, again = (
        evaluate(bert, lanes, cluster, Training(256, 1, recompute), cache=schedules)
        for recompute in ("none", "full")
    )
    for result in (plain, again):
        assert result.tokens_per_s_per_device == pytest.approx(
            result.throughput_samples_per_s * bert.sequence / cluster.devices
        )
        assert result.tflops_per_device == pytest.approx(result.mfu * lanes.peak_flops_per_s / 1e12)
    assert plain.hfu == plain.mfu
    assert again.hfu == pytest.approx(again.mfu * 4 / 3)
    assert evaluation_to_json_dict(again)["hfu"] == again.hfu


@pytest.mark.parametrize("sequence", [128, 4096, 65536])
@pytest.mark.parametrize("kind", ["gpt:heads=2", "llama:heads=2,ffn=256"])
def test_no_chip_trains_beyond_its_peak(kind: str, sequence: int) -> None:
    """Counted in full, long causal attention seems to; without what its mask hides, none does."""
    attention = "eager" if sequence < 4096 and kind.startswith("gpt") else "flash"
    shape = f"layers=2,hidden=256,sequence={sequence},vocab=512,attention={attention}"
    workload, training = load_workload(f"{kind},{shape}"), Training(8, 1, overlap="all")
    above = set()
    for name in accelerator_presets():
        chip = load_accelerator(name)
        rate = chip.hbm_bytes_per_s or 1e12
        chip = dataclasses.replace(chip, hbm_bytes=2**42, hbm_bytes_per_s=rate)
        result = evaluate(workload, chip, load_cluster("dgx-h100", 8), training)
        assert result.mfu_causal is not None
        assert result.mfu_causal <= min(1.0, result.mfu), name
        assert (result.mfu_causal == result.mfu) == (attention == "eager"), name
        above |= {name} if result.mfu > 1.0 else set()
    assert bool(above) == (sequence == 65536)


def test_attention_without_a_mask_counts_once() -> None:
    """Where every query sees every key there is nothing to leave out; half of a causal core is."""
    variants = [
        load_workload(model, attention="flash").variants[0] for model in ("bert-large", "gpt3-175b")
    ]
    assert variants[0].masked_flops_share == 0.0
    layer = variants[1].layers[1].forward
    (core,) = [operator for operator in layer.operators if operator.attention is not None]
    assert core.masked_flops / core.flops == pytest.approx(0.5, abs=1e-3)
    assert layer.masked_flops == core.masked_flops


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_breakdown_sums_to_the_time(
    bert: Workload,
    cluster: Cluster,
    lanes: Accelerator,
    schedules: dict[str, Schedule],
    recompute: Recompute,
    optimizer: OptimizerName,
) -> None:
    """Kinds of time add up to the time per batch; MFU stays below one."""
    training = Training(256, 1, recompute, optimizer)
    result = evaluate(bert, lanes, cluster, training, cache=schedules)
    assert result.feasible
    assert result.time_per_batch_s is not None
    assert sum(result.time_breakdown_s.values()) == pytest.approx(result.time_per_batch_s, rel=1e-9)
    assert all(seconds >= 0.0 for seconds in result.time_breakdown_s.values())
    assert 0.0 < result.mfu <= 1.0
    assert result.throughput_samples_per_s == 256 / result.time_per_batch_s
    assert ("recompute" in result.time_breakdown_s) or recompute == "none"
    assert (result.time_breakdown_s["recompute"] > 0.0) == (recompute != "none")


def test_the_solved_placement_is_never_worse_than_a_given_one(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """No even split into pipeline, data and tensor degrees beats the dynamic program."""
    training = Training(128, 4, "none", "adam")
    best = evaluate(bert, lanes, cluster, training, cache=schedules)
    tried = 0
    for tensor in (1, 2):
        for pipeline in (1, 2, 3, 4, 8, 13, 26):
            for data in (1, 2, 4, 8, 16, 32):
                if pipeline * data * tensor > cluster.devices:
                    continue
                given = evaluate(
                    bert, lanes, cluster, training, (pipeline, data, tensor), cache=schedules
                )
                tried += given.feasible
                assert given.throughput_samples_per_s <= best.throughput_samples_per_s * (1 + 1e-12)
    assert tried > 20


def test_lanes_bind_the_published_point_and_not_the_real_chip(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """Against 2 × 128 lanes everything waits; 2 × 1024 lanes are more than twice as fast."""
    training = Training(256, 4)
    narrow = evaluate(bert, load_accelerator("tpuv4-phaze"), cluster, training, cache=schedules)
    wide = evaluate(bert, lanes, cluster, training, cache=schedules)
    assert next(iter(narrow.bound_by_share)) == "lanes"
    assert narrow.bound_by_share["lanes"] > 0.5
    assert next(iter(wide.bound_by_share)) != "lanes"
    assert wide.throughput_samples_per_s > 2 * narrow.throughput_samples_per_s


def test_a_slower_part_never_speeds_the_batch_up(
    bert: Workload, cluster: Cluster, lanes: Accelerator
) -> None:
    """Half the network bandwidth, HBM bandwidth or devices never give more throughput."""
    training = Training(128, 1, "none", "adam")
    reference = evaluate(bert, lanes, cluster, training).throughput_samples_per_s
    level = dataclasses.replace(cluster.levels[0], bandwidth_bytes_per_s=27e9)
    slow_network = dataclasses.replace(cluster, levels=(level,))
    slow_hbm = dataclasses.replace(lanes, hbm_bytes_per_s=lanes.hbm_bytes_per_s / 2)
    fewer = dataclasses.replace(cluster, devices=32)
    for result in (
        evaluate(bert, lanes, slow_network, training),
        evaluate(bert, slow_hbm, cluster, training),
        evaluate(bert, lanes, fewer, training),
    ):
        assert result.throughput_samples_per_s <= reference


def test_an_infeasible_point_says_what_does_not_fit(bert: Workload, cluster: Cluster) -> None:
    """Too little memory gives the reason, no placement, and how far it is off."""
    tiny = load_accelerator("tpuv4-lanes", hbm_bytes=2_000_000)
    result = evaluate(bert, tiny, cluster, Training(64, 1))
    assert not result.feasible
    assert result.reason is not None
    assert result.reason.endswith(".")
    assert result.violation > 1.0
    plain = evaluation_to_json_dict(result)
    assert plain["throughput_samples_per_s"] == plain["mfu"] == 0.0
    assert result.hfu == result.mfu_causal == plain["hfu"] == plain["mfu_causal"] == 0.0
    assert plain["time_per_batch_s"] is None
    assert plain["placement"] is None
    stored = {**plain, "hfu": None, "mfu_causal": None}  # by an older program
    assert evaluation_from_json_dict(stored) == result


def test_degrees_that_need_more_devices_are_infeasible(
    bert: Workload, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """Given and expert placements beyond the devices are answers, not usage errors."""
    single = load_cluster("tpuv4-ici-flat", 1)
    for result in (
        evaluate(bert, lanes, single, Training(8, 1), (1, 1, 2), cache=schedules),
        evaluate(bert, lanes, single, Training(8, 1), "expert", cache=schedules),
    ):
        assert not result.feasible
        assert "devices" in str(result.reason)


def test_tied_weights_are_held_once_by_one_stage_and_exchanged_by_two(
    bert: Workload, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """One stage holds the model's parameters; two stages hold the tied ones twice and exchange."""
    cluster, training = load_cluster("tpuv4-ici-flat", 2), Training(4, 1)
    alone = evaluate(bert, lanes, cluster, training, (1, 1, 1), cache=schedules)
    two = evaluate(bert, lanes, cluster, training, (2, 1, 1), cache=schedules)
    assert alone.placement is not None and two.placement is not None
    assert alone.placement.stages[0].memory_bytes.parameters == 2 * bert.parameters
    held = sum(stage.memory_bytes.parameters for stage in two.placement.stages)
    assert held > 2 * bert.parameters
    assert all(stage.synchronisation_s > 0.0 for stage in two.placement.stages)


def test_json_has_the_promised_keys(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """The plain data has every key that scripts rely on."""
    result = evaluate(bert, lanes, cluster, Training(64, 1), (2, 8, 2), cache=schedules)
    plain = evaluation_to_json_dict(result)
    assert {
        "feasible", "reason", "throughput_samples_per_s", "time_per_batch_s", "area_mm2", "mfu",
        "placement", "layers", "time_breakdown_s",
    } <= plain.keys()  # fmt: skip
    placement = plain["placement"]
    assert (placement["pipeline"], placement["data"], placement["tensor"]) == (2, 8, 2)
    assert placement["microbatches"] == 8
    stage = placement["stages"][0]
    assert {"layers", "devices", "load_s", "memory_bytes"} <= stage.keys()
    kinds = {"parameters", "gradients", "optimizer", "stash", "transient", "total"}
    assert stage["memory_bytes"].keys() == kinds
    assert stage["memory_bytes"]["total"] == sum(
        stage["memory_bytes"][kind] for kind in kinds - {"total"}
    )
    layer = plain["layers"][1]
    assert {
        "name", "count", "forward_s", "backward_s", "parameters", "stash_bytes",
        "forward_schedule", "backward_schedule",
    } <= layer.keys()  # fmt: skip
    assert layer["forward_schedule"].keys() == {"status", "bound_s", "gap", "method"}


def test_the_same_inputs_give_the_same_bits(
    bert: Workload, cluster: Cluster, lanes: Accelerator
) -> None:
    """Two evaluations without a shared cache are equal in every bit but the solver's clock."""

    def once() -> Evaluation:
        return evaluate(bert, lanes, cluster, Training(64, 1, "full", "adam"))

    assert once() == once()


def test_a_tensor_degree_or_microbatch_that_was_not_captured_is_refused(
    bert: Workload, cluster: Cluster, lanes: Accelerator
) -> None:
    """The error names what was asked and what there is."""
    with pytest.raises(InputError, match=r"not captured at microbatch 2"):
        evaluate(bert, lanes, cluster, Training(64, 2))
    with pytest.raises(InputError, match=r"tensor degree 8.*captured tensor degrees: 1, 2"):
        evaluate(bert, lanes, cluster, Training(64, 1), (1, 1, 8))


def test_more_memory_makes_an_infeasible_point_feasible(bert: Workload, cluster: Cluster) -> None:
    """A model that does not fit a small memory fits a larger one, and no slower."""
    small = load_accelerator("tpuv4-lanes", hbm_bytes=GIB // 8)
    large = load_accelerator("tpuv4-lanes", hbm_gib=80)
    training = Training(64, 1, "none", "adam")
    before = evaluate(bert, small, cluster, training)
    after = evaluate(bert, large, cluster, training)
    assert after.feasible
    assert after.throughput_samples_per_s >= before.throughput_samples_per_s


def test_the_expert_placement_is_used_and_never_beats_the_solved_one(
    bert: Workload, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """People place BERT-Large on 8 stages; the program is at least as fast."""
    cluster = load_cluster("tpuv4-ici-flat", 1024)
    training = Training(4096, 1)
    expert = evaluate(bert, lanes, cluster, training, "expert", cache=schedules)
    solved = evaluate(bert, lanes, cluster, training, cache=schedules)
    assert expert.placement is not None
    assert expert.placement.pipeline == 8
    assert expert.placement.data == 128
    assert expert.throughput_samples_per_s <= solved.throughput_samples_per_s


@pytest.mark.parametrize(
    "options",
    [
        {"zero": 1},
        {"zero": 3},
        {"pipeline_schedule": "gpipe"},
        {"pipeline_schedule": "interleaved", "interleave": 2},
    ],
)
def test_training_options_keep_the_laws(
    bert: Workload,
    cluster: Cluster,
    lanes: Accelerator,
    schedules: dict[str, Schedule],
    options: dict[str, Any],
) -> None:
    """ZeRO stages and pipeline schedules still sum to the time, and use energy and memory."""
    training = Training(64, 1, "full", "adam", **options)
    result = evaluate(bert, lanes, cluster, training, (4, 4, 1), cache=schedules)
    plain = evaluate(
        bert, lanes, cluster, Training(64, 1, "full", "adam"), (4, 4, 1), cache=schedules
    )
    assert result.placement is not None and plain.placement is not None
    assert result.time_per_batch_s is not None
    assert sum(result.time_breakdown_s.values()) == pytest.approx(result.time_per_batch_s, rel=1e-9)
    first, before = result.placement.stages[0], plain.placement.stages[0]
    if training.zero:
        assert first.memory_bytes.total < before.memory_bytes.total
        assert result.energy_by_level_j["hbm"] < plain.energy_by_level_j["hbm"]
    assert result.power_w_per_device > 0.0


def test_energy_adds_up(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """Levels sum to the batch, power is energy over time and devices, leakage stands apart."""
    result = evaluate(bert, lanes, cluster, Training(64, 1), (1, 64, 1), cache=schedules)
    assert result.time_per_batch_s is not None
    assert result.energy_j_per_batch == sum(result.energy_by_level_j.values())
    assert result.power_w_per_device == pytest.approx(
        result.energy_j_per_batch / result.time_per_batch_s / 64
    )
    assert result.energy_by_level_j["network"] > 0.0
    limit_w = 0.9 * result.power_w_per_device
    limited = evaluate(
        bert, lanes, cluster, Training(64, 1), (1, 64, 1), cache=schedules, power_limit_w=limit_w
    )
    assert not limited.feasible
    assert limited.violation == pytest.approx(1 / 0.9 - 1)
    assert "above the limit" in str(limited.reason)
    assert 0.0 < result.static_power_w_per_device < 100.0


@pytest.mark.parametrize(("zero", "stepped", "added"), [(0, 64, 64), (1, 1, 64), (2, 1, 1)])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_later_microbatches_add_up_their_gradients(
    optimizer: OptimizerName,
    zero: int,
    stepped: int,
    added: int,
    bert: Workload,
    cluster: Cluster,
    lanes: Accelerator,
    schedules: dict[str, Schedule],
) -> None:
    """The second microbatch moves the accumulator, and the step is there once, in joules too.

    Of what 64 replicas share out, each steps, or adds up, its own part.
    """
    first, two = (
        evaluate(
            bert,
            lanes,
            cluster,
            Training(batch, 1, "none", optimizer, zero=zero),
            (1, 64, 1),
            cache=schedules,
        )
        for batch in (64, 128)
    )
    moved = OPTIMIZERS[optimizer]
    price_j = energy_per_event([lanes]).hbm_j_per_byte
    more_j = two.energy_by_level_j["hbm"] - 2.0 * first.energy_by_level_j["hbm"]
    more_bytes = added * moved.accumulation_bytes - stepped * moved.fused_step_bytes
    assert more_j == pytest.approx(bert.parameters * more_bytes * float(price_j), rel=1e-6)


def test_padding_is_trained_and_not_counted(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """A batch of one sample more than the replicas takes as long as one of two for each."""
    padded, whole = (
        evaluate(bert, lanes, cluster, Training(batch, 1), (1, 64, 1), cache=schedules)
        for batch in (65, 128)
    )
    assert padded.time_per_batch_s == whole.time_per_batch_s
    assert (padded.padding_samples, whole.padding_samples) == (63, 0)
    for name in ("mfu", "hfu", "mfu_causal", "tflops_per_device", "throughput_samples_per_s"):
        assert getattr(padded, name) == pytest.approx(getattr(whole, name) * 65 / 128), name


def test_power_above_the_boards_is_seen(
    bert: Workload, cluster: Cluster, lanes: Accelerator, schedules: dict[str, Schedule]
) -> None:
    """Leakage counts; without a rating nothing is known, and no other number depends on it."""

    def rated(power_w: float | None) -> Evaluation:
        chip = dataclasses.replace(lanes, tdp_w=power_w)
        return evaluate(bert, chip, cluster, Training(64, 1), (1, 64, 1), cache=schedules)

    unknown = rated(None)
    dynamic_w, leakage_w = unknown.power_w_per_device, unknown.static_power_w_per_device
    assert not unknown.is_above_tdp
    assert rated(dynamic_w + leakage_w / 2).is_above_tdp
    assert not rated(dynamic_w + leakage_w).is_above_tdp
    assert dataclasses.replace(rated(1.0), tdp_w=None) == unknown


def test_an_evaluation_has_both_areas(bert: Workload, cluster: Cluster, lanes: Accelerator) -> None:
    """Each is that of the chip under the model of its name."""
    result = evaluate(bert, lanes, cluster, Training(64, 1), (1, 64, 1))
    assert result.area_mm2 == lanes.area_under("phaze-22nm")
    assert result.area_chip_mm2 == lanes.area_under("chip")


def test_copies_of_sharded_weights_take_their_bytes(schedules: dict[str, Schedule]) -> None:
    """Every microbatch of ZeRO 3 moves 4 + 4 + 6 bytes per parameter more; other stages nothing."""
    workload = load_workload("gpt:layers=4,hidden=512,heads=8,sequence=256,vocab=1024")
    chip, cluster = load_accelerator("a100-80"), load_cluster("dgx-a100", 8)

    def run(zero: int, gather_copies: bool) -> Evaluation:
        training = Training(
            16, 1, "none", "adam", zero=zero, overlap="none", gather_copies=gather_copies
        )
        return evaluate(workload, chip, cluster, training, (1, 8, 1), cache=schedules)

    for zero in (0, 1, 2):
        assert run(zero, True) == run(zero, False)
    plain, copied = run(3, False), run(3, True)
    assert plain.time_per_batch_s is not None and copied.time_per_batch_s is not None
    held = sum(layer.count * layer.parameters for layer in plain.layers)
    more_s = 2 * 14 * held / chip.sustained_hbm_bytes_per_s  # two microbatches on each device
    found_s = copied.time_per_batch_s - plain.time_per_batch_s
    assert found_s == pytest.approx(more_s, rel=1e-6)
    assert copied.energy_by_level_j["hbm"] > plain.energy_by_level_j["hbm"]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_model_flops_of_experts_are_those_of_the_chosen_ones(sequence_parallel: bool) -> None:
    """Neither padding nor what every device of a tensor-parallel group repeats is counted."""
    model = (
        "moe:layers=2,hidden=256,heads=4,sequence=96,vocab=512,experts=8,top_k=2,expert_ffn=64,"
        "shared=1,q_rank=64,kv_rank=64,nope_dim=32,rope_dim=32,v_dim=32"
    )
    workload = load_workload(model, tensor_parallel=(1, 2), sequence_parallel=sequence_parallel)
    padded = workload.variants[0].layers[1].forward
    assert sum(operator.flops for operator in padded.operators) > padded.flops
    training = Training(8, 1, sequence_parallel=sequence_parallel)
    chip, cluster = load_accelerator("h100"), load_cluster("dgx-h100", 2)
    teraflops = []
    for placement in ((1, 2, 1), (1, 1, 2)):
        found = evaluate(workload, chip, cluster, training, placement)
        assert found.time_per_batch_s and found.tflops_per_device
        teraflops.append(found.tflops_per_device * found.time_per_batch_s * 2)
    expected = 3.0 * workload.variants[0].forward_flops * 8 / 1e12
    assert teraflops == pytest.approx([expected, expected], rel=1e-12)

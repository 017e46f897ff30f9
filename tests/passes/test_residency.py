"""What stays on the chip while a pass of a layer runs."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

from phaze_opt.choices import Overlap
from phaze_opt.estimator.estimate import estimate_on_cores
from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.estimates import Chip, estimate_layers, schedule_problems
from phaze_opt.passes.residency import with_hbm_bytes
from phaze_opt.passes.scheduled import run_layers
from phaze_opt.scheduling.residency import check_residency
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.scheduling.solve_schedule import solve_schedule
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload
from tests.scheduling.residency_rules import broken_joint_rules

MODELS = ("bert-large", "gpt2-xl", "llama2-7b")
WINNER = {"num_tc": 4, "pe_x": 256, "pe_y": 256, "num_vc": 16, "pe_vc": 256}
CHIPS = (
    load_accelerator("tpuv4-phaze"),
    load_accelerator("tpuv4-lanes", glb_mib=32),
    load_accelerator("tpuv4-lanes", glb_mib=16, **WINNER),
    load_accelerator("tpuv5e"),
)


@functools.cache
def workload(model: str) -> Workload:
    """Return a model at both microbatches."""
    return load_workload(model, tensor_parallel=(1,), microbatch=(1, 4))


def run(model: str, chip: Accelerator, microbatch: int, residency: bool) -> Evaluation:
    """Evaluate a device by itself."""
    training = Training(64, microbatch, residency=residency)
    roomy = replace(chip, hbm_bytes=2**42)
    return evaluate(workload(model), roomy, load_cluster("tpuv4-ici-flat", 1), training)


def never_worse(with_it: Evaluation, without: Evaluation) -> None:
    """Hold an evaluation with residency to one without: no pass slower, no more energy."""
    assert with_it.throughput_samples_per_s >= without.throughput_samples_per_s
    for kept, other in zip(with_it.layers, without.layers, strict=True):
        assert kept.forward_s <= other.forward_s
        assert kept.backward_s <= other.backward_s
    assert with_it.energy_by_level_j["hbm"] <= without.energy_by_level_j["hbm"] * (1 + 1e-12)
    # Not of the private buffers: with it all products run on all cores, in other tilings.
    for level in ("arithmetic", "registers", "network"):
        assert with_it.energy_by_level_j[level] == without.energy_by_level_j[level]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("microbatch", [1, 4])
def test_residency_never_makes_a_pass_slower_and_saves_energy(model: str, microbatch: int) -> None:
    """Nothing has to stay; bytes that do not flow are not paid."""
    for chip in CHIPS:
        never_worse(*(run(model, chip, microbatch, on) for on in (True, False)))


@pytest.mark.parametrize("model", MODELS)
def test_a_larger_buffer_is_never_slower_and_worth_something(model: str) -> None:
    """On the winner of a search without residency, to which it was worth nothing."""
    rates = {}
    for on in (False, True):
        rates[on] = [
            run(
                model, load_accelerator("tpuv4-lanes", glb_mib=size, **WINNER), 1, on
            ).throughput_samples_per_s
            for size in (8, 16, 32, 64, 128)
        ]
    assert rates[True] == sorted(rates[True])
    assert rates[True][-1] > 1.02 * rates[True][0]
    assert rates[True][-1] > 1.02 * rates[False][-1]


@pytest.mark.parametrize("model", MODELS)
def test_every_schedule_keeps_the_rules(model: str) -> None:
    """Room in the buffer, order, bytes and durations, as an independent checker counts them."""
    stays = 0
    for chip in CHIPS:
        for variant in workload(model).variants:
            place = Chip(chip, load_cluster("tpuv4-ici-flat", 1), "epilogue")
            for problem in schedule_problems(variant, place, Training(64, variant.microbatch)):
                assert problem.residency is not None or len(problem.operators) < 3
                if problem.residency is None:
                    continue
                check_residency(problem.residency, [operator.id for operator in problem.operators])
                schedule = solve_schedule(problem)
                assert schedule.bound_s <= schedule.makespan_s
                if schedule.residency is not None:
                    assert broken_joint_rules(problem, schedule) == []
                    stays += len(schedule.residency.tensors)
    assert stays > 20


def test_today_s_blocking_is_level_0() -> None:
    """With nothing resident an operator takes what it takes on all cores."""
    chip, network = CHIPS[2], load_cluster("tpuv4-ici-flat", 1)
    for variant in workload("bert-large").variants:
        place = Chip(chip, network, "epilogue")
        for problem in schedule_problems(variant, place, Training(64, variant.microbatch)):
            joint = problem.residency
            if joint is None:
                continue
            for index, operator in enumerate(problem.operators):
                flow_s = joint.hbm_bytes[index, 0] / joint.hbm_bytes_per_s
                busy_s = max(joint.other_s[index, 0], flow_s) + joint.overhead_s[index]
                expected_s = operator.intra_op_latency_s
                if operator.core == "none":
                    expected_s = operator.latency_s
                assert busy_s == pytest.approx(expected_s, rel=1e-12)
            assert (joint.working_bytes <= chip.glb_bytes).all()


@pytest.mark.parametrize("name", ["a100-80", "h100", "mi300x"])
def test_a_cache_saves_reads_and_is_never_slower(name: str) -> None:
    """Operators write what they wrote; only what the HBM reads is less, and its energy."""
    chip = load_accelerator(name)
    for microbatch in (1, 4):
        never_worse(*(run("bert-large", chip, microbatch, on) for on in (True, False)))
    variant = workload("bert-large").variants[0]
    place, training = cached_chip(chip), Training(64, 1)
    ((estimated,),) = estimate_layers([variant], [place], training)
    passes = run_layers(estimated, training, {})
    assert any(own.schedule.residency for layer in passes for own in layer.all())
    rate = chip.sustained_hbm_bytes_per_s
    for layer in passes:
        for own in layer.all():
            written = np.array(own.graph.write_bytes)
            assert (own.chosen.hbm_s * rate >= written * (1 - 1e-12)).all()
            assert (own.chosen.hbm_s <= own.estimates.all_cores.hbm_s * (1 + 1e-12)).all()


def cached_chip(chip: Accelerator) -> Chip:
    """Place a GPU where an eager framework runs on it."""
    return Chip(chip, load_cluster("dgx-h100", 1), "elementwise")


def test_a_larger_cache_is_never_slower_and_worth_something() -> None:
    """A read that a small cache serves, a larger one serves too."""
    rates = [
        run("bert-large", load_accelerator("h100", glb_mib=size), 1, True).throughput_samples_per_s
        for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 1.02 * rates[0]


def test_without_residency_a_cache_serves_nothing() -> None:
    """Then every read goes to the HBM; beside chunks of collectives the program is still one."""
    model = load_workload("bert-large", tensor_parallel=(2,), microbatch=(1,))
    place = cached_chip(load_accelerator("h100"))
    overlaps: tuple[Overlap, ...] = ("data", "all")
    for residency, overlap in itertools.product((False, True), overlaps):
        training = Training(64, 1, residency=residency, overlap=overlap)
        problems = schedule_problems(model.variants[0], place, training)
        assert all(problem.residency is None for problem in problems)
        assert any(problem.cached is not None for problem in problems) == residency


def test_chunked_collectives_run_without_residency() -> None:
    """They run beside products, and not one operator at a time."""
    model = load_workload("bert-large", tensor_parallel=(2,), microbatch=(1,))
    place = Chip(CHIPS[0], load_cluster("tpuv4-ici-flat", 2), "epilogue")
    for overlap in ("data", "all"):
        training = Training(64, 1, overlap=overlap)
        problems = schedule_problems(model.variants[0], place, training)
        assert any(problem.residency is not None for problem in problems) == (overlap == "data")


def test_a_proof_is_asked_for() -> None:
    """With ``prove`` what the fast method leaves open is solved further, and never gets worse."""
    chip = load_accelerator("tpuv4-lanes", glb_mib=16, **WINNER)
    training, network = Training(64, 4), load_cluster("tpuv4-ici-flat", 1)
    cache: dict[str, Schedule] = {}
    fast = evaluate(workload("bert-large"), chip, network, training, cache=cache)
    proven = evaluate(workload("bert-large"), chip, network, training, cache=cache, prove=True)
    for proven_layer, other in zip(proven.layers, fast.layers, strict=True):
        for now, then in (
            (proven_layer.forward_schedule, other.forward_schedule),
            (proven_layer.backward_schedule, other.backward_schedule),
        ):
            assert now.gap <= then.gap
            assert now.status == "optimal"
    assert proven.throughput_samples_per_s >= fast.throughput_samples_per_s


def test_what_does_not_flow_is_not_written_to_the_buffer_by_the_memory() -> None:
    """Every byte less saves a byte of the HBM and one that is written to the global buffer."""
    chip = CHIPS[1]
    graph = workload(MODELS[0]).variants[0].layers[1].forward
    mode = estimate_on_cores(graph, chip, chip.num_tc)
    moved = mode.hbm_s * chip.sustained_hbm_bytes_per_s
    half = with_hbm_bytes(mode, moved / 2, chip)
    joules = energy_per_event([chip])
    price_j = joules.hbm_j_per_byte + joules.glb_write_j_per_byte[0, 0]
    np.testing.assert_allclose(mode.energy_j - half.energy_j, price_j * moved / 2)
    np.testing.assert_allclose(half.hbm_s, mode.hbm_s / 2)

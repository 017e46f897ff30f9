"""Least energy of layers and batches: at most what an evaluation counts, under every option."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.arrays import FloatArray
from phaze_opt.errors import InputError
from phaze_opt.estimator.chips import Chips
from phaze_opt.estimator.least_energy import least_energies_j
from phaze_opt.estimator.single import attention_graph
from phaze_opt.evaluation import Evaluation, evaluate, place_point
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.passes.graphs import default_fusion
from phaze_opt.passes.least_energy import fused_passes, least_batch_energy_j
from phaze_opt.point import Point, cost_point, training_as_fused
from phaze_opt.training import Training
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Operator, OperatorGraph, Workload, WorkloadVariant
from tests.passes.test_least_seconds import (
    CLUSTER,
    EXPERTS,
    GPUS,
    SLACK,
    TPUS,
    able,
    trainings,
    workload,
)
from tests.strategies import any_accelerators

MODELS = (
    "gpt:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,attention=eager",
    "llama:layers=2,hidden=512,heads=8,kv_heads=2,ffn=1024,sequence=512,vocab=4096,attention=flash",
    EXPERTS,
)
chips_of_any_kind = st.one_of(any_accelerators, st.sampled_from([*TPUS, *GPUS]).map(able))


@pytest.mark.parametrize("model", MODELS)
@given(chip=chips_of_any_kind, training=trainings)
@settings(max_examples=6, deadline=None)
def test_no_pass_takes_less(model: str, chip: Accelerator, training: Training) -> None:
    """In the modes that any schedule chooses, with whatever stays on the chip."""
    chip = replace(chip, fp8_column_copies=False)  # every training is possible
    captured = workload(model, training.microbatch, training.sequence_parallel)
    costed = cost_point(Point(captured, chip, CLUSTER, training))
    for tensor_degree, cost in costed.costs.items():
        for passes in cost.passes:
            for scheduled in passes.all():
                ((least_j,), (nothing_stays_j,)) = least_energies_j(
                    [scheduled.graph],
                    Chips([chip]),
                    CLUSTER,
                    tensor_degree,
                    residency=training.residency,
                )
                assert least_j[0] <= nothing_stays_j[0]
                assert 0.0 <= least_j[0] <= scheduled.totals[2].sum() * SLACK


@pytest.mark.parametrize("model", MODELS)
@given(
    chip=chips_of_any_kind,
    training=trainings,
    zero=st.sampled_from([0, 1, 2, 3]),
    degrees=st.sampled_from([(1, 64), (2, 32), (1, 16), (2, 1), (2, 3)]),
)
@settings(max_examples=6, deadline=None)
def test_no_batch_takes_less(
    model: str, chip: Accelerator, training: Training, zero: int, degrees: tuple[int, int]
) -> None:
    """On any chip, at any placement that fits."""
    chip = replace(chip, hbm_bytes=2**40, fp8_column_copies=False)
    training = replace(training, zero=zero)
    captured = workload(model, training.microbatch, training.sequence_parallel)
    for variant in captured.variants:
        tensor_degree = variant.tensor_parallel
        pipeline, data = degrees
        if pipeline * data * tensor_degree > CLUSTER.devices:
            data = CLUSTER.devices // (pipeline * tensor_degree)
        evaluation = evaluated(captured, chip, training, (pipeline, data, tensor_degree))
        if evaluation is not None:
            assert least_of(variant, chip, training) <= evaluation.energy_j_per_batch * SLACK


def evaluated(
    captured: Workload, chip: Accelerator, training: Training, degrees: tuple[int, int, int]
) -> Evaluation | None:
    """Return a feasible evaluation at a placement; ``None`` where there is none."""
    try:
        evaluation = place_point(cost_point(Point(captured, chip, CLUSTER, training, degrees)))
    except InputError:
        return None
    return evaluation if evaluation.feasible else None


def least_of(variant: WorkloadVariant, chip: Accelerator, training: Training) -> float:
    """Return the bound of one chip."""
    return float(least_of_chips(variant, Chips([chip]), training)[0])


def least_of_chips(variant: WorkloadVariant, chips: Chips, training: Training) -> FloatArray:
    """Return the bounds of chips of one kind."""
    fusion = default_fusion(chips[0])
    as_fused = training_as_fused(training, fusion)
    graphs, _ = fused_passes(variant, as_fused, fusion)
    passes_j, _ = least_energies_j(
        graphs, chips, CLUSTER, variant.tensor_parallel, residency=training.residency
    )
    return least_batch_energy_j(variant, as_fused, fusion, passes_j, chips)


def test_the_bound_is_close() -> None:
    """Without residency the bound holds nearly all of the energy of a known chip."""
    training = Training(64, recompute="full", residency=False)
    chip = load_accelerator("tpuv4-phaze")
    captured = workload(MODELS[0], 1, False)
    exact = evaluate(captured, chip, CLUSTER, training)
    least_j = min(least_of(variant, chip, training) for variant in captured.variants)
    assert 0.95 * exact.energy_j_per_batch < least_j < exact.energy_j_per_batch


def test_chips_at_once_are_the_same() -> None:
    """Many chips give what each gives alone."""
    chips = [able(name) for name in TPUS]
    variant = workload(MODELS[0], 1, False).variants[0]
    training = Training(64)
    together = least_of_chips(variant, Chips(chips), training)
    alone = [least_of(variant, chip, training) for chip in chips]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("residency", [False, True])
def test_what_shares_its_memories_takes_as_much(residency: bool) -> None:
    """Vector cores, lanes and the HBM change no energy; smaller private buffers take more."""
    chip, variant = load_accelerator("tpuv4-lanes"), workload(MODELS[1], 1, False).variants[0]
    others = [
        replace(chip, num_vc=chip.num_vc * 2),
        replace(chip, pe_vc=chip.pe_vc // 2),
        replace(chip, hbm_bytes=2 * chip.hbm_bytes, hbm_bytes_per_s=chip.hbm_bytes_per_s / 3),
    ]
    energies_j = least_of_chips(variant, Chips([chip, *others]), Training(64, residency=residency))
    np.testing.assert_array_equal(energies_j, energies_j[0])
    small = replace(chip, pe_vc=chip.pe_vc // 2, l2_vc_bytes=chip.l2_vc_bytes // 2)
    assert least_of(variant, small, Training(64, residency=residency)) > energies_j[0]


@pytest.mark.parametrize("backward", [False, True])
def test_what_a_mask_hides_takes_little(backward: bool) -> None:
    """Of products and lanes alike, the tiles with visible scores count; tensors move in full."""
    causal = AttentionShape(2, 512, 512, 8, 2, 64, causal=True)
    chips = Chips([load_accelerator("tpuv4-lanes")])

    def least_j(graph: OperatorGraph) -> float:
        return float(least_energies_j([graph], chips, CLUSTER, residency=False)[0, 0, 0])

    masked = attention_graph(causal, backward=backward)
    whole = attention_graph(replace(causal, causal=False), backward=backward)
    moved_j = least_j(OperatorGraph((Operator("none"),), whole.tensors))
    visible = causal.scores.visible / causal.scores.elements
    share = (least_j(masked) - moved_j) / (least_j(whole) - moved_j)
    assert visible < share < visible + 0.2

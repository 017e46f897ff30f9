"""Batches whose weight gradients are added up by the products that make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.energy import energy_per_event
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.training import Training
from phaze_opt.workload.graph import Workload
from phaze_opt.workload.zoo import load_workload

HIDDEN, LAYERS, VOCABULARY, SEQUENCE = 512, 3, 4096, 512
MODEL = (
    f"gpt:layers={LAYERS},hidden={HIDDEN},heads=8,sequence={SEQUENCE},vocab={VOCABULARY},"
    "attention=flash"
)
PRODUCTS = LAYERS * 12 * HIDDEN**2 + VOCABULARY * HIDDEN
"""Parameters of linear layers, the head among them, which is tied to the embedding."""
CHIPS = "h100", "tpuv4-lanes"


def _workload() -> Workload:
    return load_workload(MODEL)


def _evaluated(chip: str, global_batch: int, **options: Any) -> Evaluation:
    """Train on one device, whose optimizer steps in one pass."""
    training = Training(global_batch, optimizer="adam", **options)
    cluster = load_cluster("dgx-h100", 1)
    return evaluate(
        _workload(), load_accelerator(chip), cluster, training, (1, 1, 1), fusion="epilogue"
    )


def _both(chip: str, global_batch: int, **options: Any) -> tuple[Evaluation, Evaluation]:
    """Train with and without products that add gradients up."""
    own = _evaluated(chip, global_batch, **options)
    return own, _evaluated(chip, global_batch, fused_accumulation=True, **options)


def _added_s(evaluation: Evaluation) -> float:
    assert evaluation.placement is not None
    return evaluation.placement.time_breakdown_s["gradient_accumulation"]


def _time_s(evaluation: Evaluation) -> float:
    assert evaluation.time_per_batch_s is not None
    return evaluation.time_per_batch_s


@pytest.mark.parametrize("chip", CHIPS)
def test_what_no_product_writes_is_added_up_as_before(chip: str) -> None:
    """Norms, biases and embeddings, the tied one too: 8 B of each, after the first microbatch."""
    parameters = _workload().parameters
    own, fused = _both(chip, 4)
    rate = load_accelerator(chip).sustained_hbm_bytes_per_s
    assert _added_s(own) == pytest.approx(3 * 8 * parameters / rate, rel=1e-9)
    beside = parameters - PRODUCTS + VOCABULARY * HIDDEN
    assert _added_s(fused) == pytest.approx(3 * 8 * beside / rate, rel=1e-9)
    assert _time_s(fused) < _time_s(own)


@pytest.mark.parametrize("chip", CHIPS)
def test_one_microbatch_waits_for_no_accumulator(chip: str) -> None:
    """It takes no longer than what its products move more: a read of zeros, and a wider write."""
    own, fused = _both(chip, 1)
    assert _added_s(own) == _added_s(fused) == 0.0
    rate = load_accelerator(chip).sustained_hbm_bytes_per_s
    more_s = 6 * PRODUCTS / rate
    assert _time_s(own) <= _time_s(fused) * (1.0 + 1e-12)
    assert _time_s(fused) <= (_time_s(own) + more_s) * (1.0 + 1e-12)


def test_products_that_arrays_bind_take_as_long() -> None:
    """The accumulators' traffic hides beside long products: what was added up apart is saved."""
    long = load_workload(
        "llama:layers=1,hidden=4096,heads=32,kv_heads=8,ffn=14336,sequence=8192,vocab=32000"
    )
    accelerator, cluster = load_accelerator("h100"), load_cluster("dgx-h100", 1)
    training = Training(4, optimizer="adam", residency=False)
    own, fused = (
        evaluate(
            *(long, accelerator, cluster, replace(training, fused_accumulation=on), (1, 1, 1)),
            fusion="epilogue",
        )
        for on in (False, True)
    )
    saved_s = _added_s(own) - _added_s(fused)
    assert _time_s(own) - _time_s(fused) == pytest.approx(saved_s, rel=1e-6)


@pytest.mark.parametrize("microbatches", [4, 8])
def test_bytes_of_a_batch(microbatches: int) -> None:
    """Products move 8 B instead of 2 B in every microbatch, and 8 B less is moved after the first.

    The weight of the head is the embedding's too, whose gradient no product writes. Without a
    cache that serves reads every byte takes energy.
    """
    own, fused = _both("h100", microbatches, residency=False)
    saved_bytes = 8 * (microbatches - 1) * (PRODUCTS - VOCABULARY * HIDDEN)
    saved_bytes -= (8 - 2) * microbatches * PRODUCTS
    each_j = float(energy_per_event([load_accelerator("h100")]).hbm_j_per_byte)
    saved_j = own.energy_by_level_j["hbm"] - fused.energy_by_level_j["hbm"]
    assert saved_j == pytest.approx(saved_bytes * each_j, rel=1e-6)


@pytest.mark.parametrize("zero", [2, 3])
def test_shares_of_gradients_are_added_up_beside(zero: int) -> None:
    """To the bit as without, where replicas reduce gradients in every microbatch."""
    own, fused = _both("h100", 4, zero=zero)
    assert own == fused

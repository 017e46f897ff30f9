"""What layers hold of weights in fewer bits, and of those that stay in 16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from phaze_opt.evaluation import evaluate
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.bare_layers import bare_chain, narrow_weights
from phaze_opt.placement.memory import Shards, stage_memory
from phaze_opt.training import Training
from phaze_opt.workload.bf16_layers import with_bf16_layers
from phaze_opt.workload.graph import WorkloadVariant
from phaze_opt.workload.zoo import load_workload

HIDDEN, INNER, WORDS, LAYERS = 512, 1024, 2048, 4
MODEL = (
    f"llama:layers={LAYERS},hidden={HIDDEN},heads=8,kv_heads=4,ffn={INNER},sequence=256,"
    f"vocab={WORDS},attention=flash"
)
QUERIES, KEYS_VALUES, OUT = HIDDEN**2, HIDDEN**2, HIDDEN**2
"""Of a block; keys and values have half of the heads each."""
BLOCK = QUERIES + KEYS_VALUES + OUT + 3 * HIDDEN * INNER
TRAINING = Training(8, optimizer="adam", precision="fp8")


def variant() -> WorkloadVariant:
    """Return the model on one device."""
    return load_workload(MODEL, microbatch=(1,)).variants[0]


def weight_bytes(training: Training) -> tuple[int, int]:
    """Return the bytes of weights of the whole model, and its parameters."""
    layers = bare_chain(with_bf16_layers(variant(), training), training, "elementwise")
    held = stage_memory(layers, 1, training.state, Shards.of(training.zero, 1))
    return held.parameters, sum(layer.parameters for layer in layers)


@pytest.mark.parametrize(
    ("options", "narrow", "copies"),
    [
        ({}, LAYERS * BLOCK, 2.0),
        ({"fp8_transposes": False}, LAYERS * BLOCK, 1.0),
        ({"precision": "mxfp8"}, LAYERS * BLOCK, 2.0625),
        ({"bf16_layers_at_start": 1, "bf16_layers_at_end": 2}, BLOCK, 2.0),
        (
            {"linear_precisions": "linear_fc1=bf16,linear_fc2=bf16"},
            LAYERS * (BLOCK - 3 * HIDDEN * INNER),
            2.0,
        ),
    ],
)
def test_narrow_copies_are_of_narrow_products(
    options: dict[str, Any], narrow: int, copies: float
) -> None:
    """Embeddings, head, norms, and what stays in bf16 have two bytes, all others copies beside."""
    held, parameters = weight_bytes(replace(TRAINING, **options))
    assert held == 2 * parameters + copies * narrow


def test_primary_weights_in_sixteen_bits_are_held_so() -> None:
    """On chips where one copy in fp8 is enough, they take twice as much as the others."""
    primary = replace(TRAINING, fp8_primary_weights=True, fp8_transposes=False)
    held, parameters = weight_bytes(primary)
    assert held == 2 * parameters - LAYERS * BLOCK
    assert weight_bytes(replace(primary, fp8_transposes=True))[0] == 2 * parameters


def test_shared_out_weights_have_no_copies() -> None:
    """What ZeRO 3 gathers is cast each time, whatever it is."""
    held, parameters = weight_bytes(replace(TRAINING, zero=3))
    assert held == 2 * parameters


def test_routers_are_held_in_sixteen_bits() -> None:
    """And routed experts are not."""
    sizes = "heads=8,sequence=512,vocab=4096,experts=8,top_k=2,expert_ffn=384"
    model = f"moe:layers=1,hidden={HIDDEN},{sizes}"
    (block,) = [
        layer
        for layer in load_workload(model, microbatch=(1,)).variants[0].layers
        if layer.routed_parameters
    ]
    norms, router = 2 * HIDDEN, 8 * HIDDEN
    assert narrow_weights(block, TRAINING) == block.parameters - norms - router
    assert narrow_weights(block, replace(TRAINING, precision="bf16")) == 0


@pytest.mark.parametrize("zero", [0, 1])
def test_memory_that_is_just_enough_is_enough(zero: int) -> None:
    """For the search too, whose bounds know what has no copies."""
    training = replace(TRAINING, zero=zero)
    chip, cluster = load_accelerator("h100"), load_cluster("dgx-h100", 2)
    given = evaluate(variant_workload(), chip, cluster, training, (1, 2, 1))
    assert given.placement is not None
    need = given.placement.stages[0].memory_bytes.total
    share = chip.calibration.usable_hbm_share
    for spare, fits in ((64, True), (-4096, False)):
        tight = replace(chip, hbm_bytes=int((need + spare) / share))
        found = evaluate(variant_workload(), tight, cluster, training, (1, 2, 1))
        assert found.feasible == fits
        if fits:
            assert evaluate(variant_workload(), tight, cluster, training, "solve").feasible


def variant_workload() -> Any:
    """Return the model."""
    return load_workload(MODEL, microbatch=(1,))

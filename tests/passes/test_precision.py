"""Whole passes and evaluations in fewer bits than 16."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest

from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.hardware import energy
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.bare_layers import narrow_weights
from phaze_opt.precision import PRECISIONS, RECIPES, Precision, PrecisionName
from phaze_opt.training import Training
from phaze_opt.workload.casts import linear_products
from phaze_opt.workload.graph import Gemm, OperatorGraph, Workload
from phaze_opt.workload.zoo import load_workload

MODEL = (
    "llama:layers=4,hidden=2048,heads=16,kv_heads=8,ffn=5632,sequence=1024,vocab=8000,"
    "attention=flash"
)
TRAINING = Training(32, microbatch=2, optimizer="adam", recompute="selective")
CLUSTER = load_cluster("tpuv4-ici-flat", 8)


@pytest.fixture(scope="module")
def workload() -> Workload:
    """Return the model at two tensor degrees."""
    return load_workload(MODEL, tensor_parallel=(1, 2), microbatch=(2,))


def able(**ratios: float) -> Accelerator:
    """Return a chip with rates in every precision."""
    stated = {"fp8_ratio": 2.0, "fp4_ratio": 4.0, "int8_ratio": 2.0, **ratios}
    return load_accelerator("tpuv4-lanes", hbm_gib=80, **stated)


def gemm_in(precision: str, gemm: Gemm) -> Gemm:
    """Return a product in a precision."""
    return replace(gemm, precision=cast(PrecisionName, precision))


@pytest.mark.parametrize("degrees", [(1, 8, 1), (2, 2, 2)])
def test_narrower_is_faster_where_the_arrays_bind(
    workload: Workload, degrees: tuple[int, int, int]
) -> None:
    """Eight bits beat sixteen and four beat eight, and never by more than the ratio of rates."""
    seconds = {
        name: evaluate(
            workload, able(), CLUSTER, replace(TRAINING, precision=name), degrees
        ).time_per_batch_s
        or math.inf
        for name in RECIPES
    }
    assert seconds["nvfp4"] < seconds["mxfp8"] < seconds["bf16"]
    for name, each_s in seconds.items():
        assert seconds["bf16"] <= able().nominal_rate(name) * each_s


def test_free_casts_at_equal_rates_are_sixteen_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe with the bytes and the rate of bf16, whose casts are not there, changes nothing."""
    # Of sizes that no other test has, whose products are cached by the name of their precision.
    model = MODEL.replace("5632", "4864").replace("2048", "1408").replace("heads=16", "heads=11")
    workload = load_workload(
        model.replace("kv_heads=8", "kv_heads=11"), tensor_parallel=(1,), microbatch=(2,)
    )
    plain = evaluate(workload, able(), CLUSTER, TRAINING, (2, 4, 1))
    wide = PRECISIONS["bf16"]._replace(arrays="fp8")
    monkeypatch.setitem(cast(dict[str, Precision], PRECISIONS), "fp8-row", wide)
    monkeypatch.setattr(Training, "cast_bytes", 0)
    # Nor do its multiply-accumulates take another energy.
    monkeypatch.setattr(energy, "mac_energy_share", lambda name: 1.0)
    monkeypatch.setattr(energy, "_energy_per_event", energy._energy_per_event.__wrapped__)

    def renamed(
        graph: OperatorGraph, precision: str, *, stashed: bool, **_: object
    ) -> OperatorGraph:
        """Return the graph with products in the recipe, and nothing else."""
        del stashed
        linear = set(linear_products(graph))
        operators = tuple(
            replace(
                operator,
                gemms=tuple([gemm_in(precision, gemm) for gemm in operator.gemms]),
            )
            if index in linear
            else operator
            for index, operator in enumerate(graph.operators)
        )
        return replace(graph, operators=operators)

    monkeypatch.setattr("phaze_opt.passes.graphs.quantised", renamed)
    monkeypatch.setattr("phaze_opt.passes.bare_layers.stash_change_bytes", lambda *_: 0)
    changed = replace(TRAINING, precision="fp8-row")
    again = evaluate(workload, able(fp8_ratio=1.0), CLUSTER, changed, (2, 4, 1))
    assert again.time_per_batch_s == plain.time_per_batch_s
    assert again.mfu == plain.mfu
    assert again.energy_by_level_j == plain.energy_by_level_j


def test_a_chip_without_the_rate_is_refused(workload: Workload) -> None:
    """The sentence says which number is missing."""
    training = replace(TRAINING, precision="nvfp4")
    with pytest.raises(InputError, match="states no fp4_ratio"):
        evaluate(workload, "tpuv4-lanes", CLUSTER, training, (1, 8, 1))


def test_utilisation_counts_the_peak_of_the_precision(workload: Workload) -> None:
    """Model FLOP/s over four times the peak of bf16 in nvfp4."""
    chip, training = able(), replace(TRAINING, precision="nvfp4")
    result = evaluate(workload, chip, CLUSTER, training, (1, 8, 1))
    assert result.tflops_per_device is not None
    peak = chip.nominal_rate("nvfp4") * chip.peak_flops_per_s
    assert result.mfu == pytest.approx(result.tflops_per_device * 1e12 / peak)


def test_memory_holds_copies_and_a_narrower_stash(workload: Workload) -> None:
    """Two bytes more of every weight in the recipe, and fewer bytes of activations."""
    narrow = replace(TRAINING, precision="fp8", recompute="none")
    wide = replace(TRAINING, recompute="none")
    held = []
    for training in (wide, narrow):
        placement = evaluate(workload, able(), CLUSTER, training, (1, 8, 1)).placement
        assert placement is not None
        held.append(placement.stages[0].memory_bytes)
    before, after = held
    variant = next(each for each in workload.variants if each.tensor_parallel == 1)
    copied = sum(narrow_weights(variant.layers[kind], narrow) for kind in variant.kinds)
    assert 0 < copied < before.parameters // 2
    assert after.parameters == before.parameters + 2 * copied
    assert after.stash < before.stash
    assert after.optimizer == before.optimizer


def test_attention_in_fewer_bits_is_faster_and_keeps_less(workload: Workload) -> None:
    """Where a kernel is stated; bf16 says nothing, and a chip without one is refused."""
    training = replace(TRAINING, recompute="none")
    with pytest.raises(InputError, match="states no attention_fp8_rate and attention_fp8_back"):
        evaluate(workload, able(), CLUSTER, replace(training, attention_precision="fp8"), (1, 8, 1))
    rates = {"calibration.attention_fp8_rate": 1.5, "calibration.attention_fp8_backward_rate": 1.4}
    chip = able(**rates)
    plain = evaluate(workload, able(), CLUSTER, training, (1, 8, 1))
    assert evaluate(workload, chip, CLUSTER, training, (1, 8, 1)).layers == plain.layers
    narrow = evaluate(
        workload, chip, CLUSTER, replace(training, attention_precision="fp8"), (1, 8, 1)
    )
    assert plain.placement is not None and narrow.placement is not None
    stashes = [each.placement.stages[0].memory_bytes.stash for each in (plain, narrow)]  # type: ignore[union-attr]
    assert stashes[1] < stashes[0]


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize(("data", "pipeline"), [(2, 1), (8, 1), (2, 2)])
def test_every_replica_casts_all_of_its_weights(
    workload: Workload, zero: int, data: int, pipeline: int
) -> None:
    """However many share out the step, stages take the bytes of their own weights longer for it.

    With primary weights in fp8 the share that is stepped is written so, the rest transposed.
    """
    plain = replace(TRAINING, optimizer="adam", zero=zero)
    copied = replace(plain, precision="fp8")
    primary = replace(copied, fp8_primary_weights=True, fp8_param_gather=True)
    degrees = pipeline, data, 1
    solved = [
        evaluate(workload, able(), CLUSTER, training, degrees).placement
        for training in (plain, copied, primary)
    ]
    for stages in zip(*(each.stages for each in solved if each), strict=True):
        step_s, *narrow_s = (stage.optimizer_s for stage in stages)
        moved_s = step_s / plain.step_bytes  # of what one device steps, a byte per parameter
        shares = data if zero else 1
        (copying, transposing) = (0, 0) if zero == 3 else (4, 2)
        assert narrow_s[0] == pytest.approx(step_s + moved_s * shares * copying)
        written = 0 if zero == 3 else -1
        assert narrow_s[1] == pytest.approx(step_s + moved_s * (shares * transposing + written))

"""Points of models with state-space mixers, delta nets, attention and experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.explanation.explain import explain
from phaze_opt.training import Training
from phaze_opt.workload.recipes import quantised
from phaze_opt.workload.recompute_parts import parts_by_layer, with_parts_run_again
from phaze_opt.workload.zoo import load_workload

MODELS = {path.stem: str(path) for path in (Path(__file__).parent / "data" / "hybrids").iterdir()}
TRAINING = Training(64, 1, optimizer="adam", zero=1, dispatcher="deepep")
models = pytest.mark.parametrize("model", MODELS)


def point(model: str, placement: Any = "solve", chip: str = "h100", **options: Any) -> Evaluation:
    """Evaluate a model on 16 devices, two nodes."""
    training = replace(TRAINING, **options)
    return evaluate(MODELS[model], chip, "dgx-h100", training, placement, devices=16)


def seconds(evaluation: Evaluation) -> float:
    """Return the time of a feasible point."""
    assert evaluation.time_per_batch_s is not None
    return evaluation.time_per_batch_s


options = st.fixed_dictionaries(
    {
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "overlap": st.sampled_from(["none", "partial", "data", "experts", "all"]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "residency": st.booleans(),
        "sequence_parallel": st.booleans(),
        "precision": st.sampled_from(["bf16", "fp8"]),
        "launch": st.sampled_from(["graphs", "compiled", "eager"]),
    }
)


@settings(max_examples=5, deadline=None)
@given(
    options,
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["1x16x1x8", "2x8x1x8", "2x4x2x4"]),
    st.sampled_from(["h100", "tpuv4-lanes"]),
)
def test_every_option_works_with_them(
    chosen: dict[str, Any], model: str, placement: str, chip: str
) -> None:
    """The parts of a batch add up, a solved placement is no slower, and MFU stays below one."""
    if chip == "tpuv4-lanes":
        chosen = {**chosen, "precision": "bf16"}
    stated = point(model, placement, chip, **chosen)
    assert sum(stated.time_breakdown_s.values()) == pytest.approx(seconds(stated))
    assert 0.0 < stated.mfu < 1.0
    solved = point(model, "solve", chip, expert_parallel=int(placement[-1]), **chosen)
    assert seconds(solved) <= seconds(stated) * (1.0 + 1e-9)


@models
def test_an_explanation_has_a_reason_for_every_kind_of_block(model: str) -> None:
    """Every distinct layer is explained, and the stage's parts are its time."""
    reasons = explain(MODELS[model], "h100", "dgx-h100", TRAINING, "1x16x1x8", devices=16)
    workload = load_workload(MODELS[model])
    assert [each.name for each in reasons.layers] == [
        layer.name for layer in workload.variants[0].layers
    ]
    assert reasons.stage is not None
    assert sum(reasons.stage.parts_s.values()) == pytest.approx(seconds(reasons.evaluation))


@models
def test_recompute_trades_time_for_memory(model: str) -> None:
    """Full recompute keeps less and takes longer than none, and selective lies between."""
    by_recompute = [
        point(model, "1x16x1", recompute=recompute) for recompute in ("none", "selective", "full")
    ]
    times_s = list(map(seconds, by_recompute))
    assert times_s == sorted(times_s)
    stashes = []
    for each in by_recompute:
        assert each.placement is not None
        stashes.append(each.placement.stages[0].memory_bytes.stash)
    assert stashes == sorted(stashes, reverse=True)
    assert times_s[0] < times_s[2] and stashes[0] > stashes[2]


@models
def test_a_recipe_casts_linear_layers_and_no_recurrence(model: str) -> None:
    """Products of a scan or a delta rule have no weight, and stay in 16 bits."""
    (variant,) = load_workload(MODELS[model]).variants
    recurrent = 0
    for layer in variant.layers[1:-1]:
        for graph, stashed in ((layer.forward, False), (layer.backward, True)):
            for operator in quantised(graph, "fp8", stashed=stashed).operators:
                named = operator.id.startswith(("chunk_", "scores_gradient", "delta_", "invert_"))
                recurrent += named
                narrow = any(gemm.precision != "bf16" for gemm in operator.gemms)
                linear = operator.id.startswith(("mm", "grouped_product"))
                assert narrow <= linear and not (narrow and named)
    assert recurrent > 8


def test_parts_of_a_hybrid_are_those_of_attention_and_experts() -> None:
    """Nothing of a mixer is a part; experts by themselves run again, with less kept."""
    (variant,) = load_workload(MODELS["nemotron_h"]).variants
    found = parts_by_layer(variant)
    assert set(found) == {"attention_block", "expert_block"}
    assert set(found["attention_block"]) == {"core_attn", "layernorm"}
    assert {"moe", "moe_act", "shared_experts"} <= set(found["expert_block"])
    (variant,) = load_workload(MODELS["qwen3_next"]).variants
    (delta,) = (layer for layer in variant.layers if layer.name == "delta_expert_block")
    assert "core_attn" not in parts_by_layer(variant)["delta_expert_block"]
    (changed,) = with_parts_run_again(
        [variant], replace(TRAINING, recompute="selective", recompute_parts="moe")
    )
    (again,) = (layer for layer in changed.layers if layer.name == "delta_expert_block")
    names = {operator.id for operator in again.selective_recompute.operators}
    assert any(name.startswith("grouped_product") for name in names)
    assert not any(name.startswith(("delta_", "short_", "gated_rms")) for name in names)
    assert again.stash_bytes.selective < delta.stash_bytes.none

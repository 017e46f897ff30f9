"""The graphs of a layer that run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze_opt.choices import Recompute
from phaze_opt.evaluation import evaluate
from phaze_opt.passes.graphs import graphs_of, runs_again
from phaze_opt.training import Training
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.zoo import load_workload
from tests.passes.test_estimates import workload


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_runs_again(recompute: Recompute) -> None:
    """Nothing, what the capture says, or the forward; it is one of the graphs that are named."""
    training = Training(8, recompute=recompute)
    for layer in workload().variants[0].layers:
        graphs = graphs_of(layer, training)
        assert (graphs["forward"], graphs["backward"]) == (layer.forward, layer.backward)
        again = {"none": None, "selective": layer.selective_recompute, "full": layer.forward}
        assert runs_again(layer, graphs, training) is again[recompute]


@pytest.mark.parametrize("model", ["moe", "llama"])
def test_an_early_stop_ends_with_the_last_product(model: str) -> None:
    """All before it runs again, and results of experts are not sent once more."""
    shape = "layers=2,hidden=512,heads=8,sequence=512,vocab=4096"
    ends = {
        "moe": (f"moe:{shape},experts=8,top_k=2,expert_ffn=384", "grouped_product_1"),
        "llama": (f"llama:{shape},ffn=1024", "mm"),
    }
    name, last = ends[model]
    training = Training(8, 1, "full", expert_parallel=4 if model == "moe" else 1)
    variant = load_workload(name).variants[0]
    (layer,) = [
        layer
        for layer in with_experts_shared_out(variant, training).layers
        if layer.name == "block"
    ]
    for recompute in ("none", "selective"):
        early = replace(training, recompute=recompute, recompute_early_stop=True)
        assert graphs_of(layer, early) == graphs_of(layer, replace(training, recompute=recompute))
    graphs = graphs_of(layer, replace(training, recompute_early_stop=True))
    again = runs_again(layer, graphs, training=replace(training, recompute_early_stop=True))
    assert again is not None
    count = len(again.operators)
    assert again.operators == layer.forward.operators[:count] and count < len(
        layer.forward.operators
    )
    assert again.operators[-1].id.startswith(last)
    assert again.flops == layer.forward.flops
    sent = [op.collective.kind for op in again.operators if op.collective]
    assert sent == (["dispatch"] if model == "moe" else [])


def test_an_early_stop_saves_time_and_changes_nothing_else() -> None:
    """Only with full recompute; memory is the same."""
    model = (
        "moe:layers=2,hidden=512,heads=8,sequence=512,vocab=4096,experts=8,top_k=2,expert_ffn=384"
    )
    training = Training(32, 1, "full", "adam", expert_parallel=8, dispatcher="deepep")
    whole, early = (
        evaluate(model, "h100", "dgx-h100", each, (1, 8, 1), devices=8)
        for each in (training, replace(training, recompute_early_stop=True))
    )
    assert whole.placement and early.placement
    assert (early.time_per_batch_s or 0.0) < (whole.time_per_batch_s or 0.0)
    (one,), (other,) = whole.placement.stages, early.placement.stages
    assert one.memory_bytes == other.memory_bytes
    none = replace(training, recompute="none")
    plain, stopped = (
        evaluate(model, "h100", "dgx-h100", each, (1, 8, 1), devices=8)
        for each in (none, replace(none, recompute_early_stop=True))
    )
    assert plain == stopped

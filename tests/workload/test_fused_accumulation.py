"""Laws of backwards whose products add their weight gradients up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.choices import GradientDtype
from phaze_opt.estimator.estimate import estimate_table
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.graphs import graphs_of
from phaze_opt.precision import ELEMENT_BYTES
from phaze_opt.training import Training
from phaze_opt.workload.expert_parallel import with_experts_shared_out
from phaze_opt.workload.fused_accumulation import accumulated_parameters, with_fused_accumulation
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import OperatorGraph, WorkloadVariant
from phaze_opt.workload.zoo import load_workload

GPT = "gpt:layers=2,hidden=256,heads=8,sequence=128,vocab=1024"
LLAMA = "llama:layers=2,hidden=256,heads=8,kv_heads=4,ffn=512,sequence=128,vocab=1024"
MOE = (
    "moe:layers=2,hidden=64,heads=4,sequence=512,vocab=64,experts=8,top_k=2,expert_ffn=16,shared=1"
)
MODELS = GPT, LLAMA, MOE

dtypes = st.sampled_from([None, "fp32", "bf16"])


def _variant(model: str, tensor: int = 1) -> WorkloadVariant:
    return load_workload(model, tensor_parallel=(tensor,)).variants[0]


def _fused(variant: WorkloadVariant, **options: Any) -> WorkloadVariant:
    training = Training(8, optimizer="adam", fused_accumulation=True, **options)
    return with_fused_accumulation(variant, training)


def _gradients(graph: OperatorGraph) -> dict[int, int]:
    """Return the elements of weight gradients by the product that writes them."""
    return {
        writer: elements
        for tensor in graph.tensors
        if tensor.kind == "weight_gradient"
        for writer, elements in tensor.writers
        if graph.operators[writer].gemms
    }


def test_bytes_of_one_layer_by_hand() -> None:
    """A block of GPT: four products write 12·h² gradients; norms and biases have 13·h beside."""
    hidden = 256
    own, fused = (variant.layers[1] for variant in (_variant(GPT), _fused(_variant(GPT))))
    products = 12 * hidden**2
    assert own.parameters == products + 13 * hidden
    assert accumulated_parameters(own.backward) == 0
    assert accumulated_parameters(fused.backward) == products
    assert sum(fused.backward.read_bytes) - sum(own.backward.read_bytes) == 4 * products
    assert sum(fused.backward.write_bytes) - sum(own.backward.write_bytes) == 2 * products
    in_bf16 = _fused(_variant(GPT), accumulation_dtype="bf16").layers[1]
    assert sum(in_bf16.backward.read_bytes) - sum(own.backward.read_bytes) == 2 * products
    assert in_bf16.backward.write_bytes == own.backward.write_bytes


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2]), st.sampled_from([1, 4]), dtypes)
def test_every_product_adds_up_what_it_makes(
    model: str, tensor: int, experts: int, dtype: GradientDtype | None
) -> None:
    """It moves its accumulator both ways; nothing else changes, and gradients stay as many."""
    variant = _variant(model, tensor)
    if model == MOE:
        variant = with_experts_shared_out(variant, Training(8, expert_parallel=experts))
    each_bytes = ELEMENT_BYTES[dtype or "fp32"]
    fused = _fused(variant, accumulation_dtype=dtype)
    for before, after in zip(variant.layers, fused.layers, strict=True):
        assert replace(after, backward=before.backward) == before
        assert after.backward.operators == before.backward.operators
        assert after.backward.edges == before.backward.edges
        written = _gradients(before.backward)
        assert written or before.name == "embedding"
        for index in range(len(before.backward.operators)):
            own = written.get(index, 0)
            read = after.backward.read_bytes[index] - before.backward.read_bytes[index]
            more = after.backward.write_bytes[index] - before.backward.write_bytes[index]
            assert (read, more) == (own * each_bytes, own * (each_bytes - 2))
        added = accumulated_parameters(after.backward)
        assert added == sum(written.values()) <= before.parameters
        # However operators are fused, and in whatever they multiply.
        for graph in graphs_of(after, Training(8, precision="fp8")).values():
            for mode in ("none", "elementwise", "epilogue"):
                assert accumulated_parameters(fuse(graph, mode)) in (0, added)


@pytest.mark.parametrize("options", [{"zero": 2}, {"zero": 3}, {"fused_accumulation": False}])
def test_nothing_changes_where_products_do_not(options: dict[str, Any]) -> None:
    """Without it, and where each replica adds up its share of what was reduced."""
    variant = _variant(GPT)
    training = Training(8, optimizer="adam", **({"fused_accumulation": True} | options))
    assert with_fused_accumulation(variant, training) is variant


@pytest.mark.parametrize("chip", ["h100", "tpuv4-lanes"])
def test_no_product_is_faster_than_its_roofline(chip: str) -> None:
    """Nor slower than without by more than what it moves besides."""
    accelerator = load_accelerator(chip)
    rate = accelerator.sustained_hbm_bytes_per_s
    graphs = [variant.layers[1].backward for variant in (_variant(LLAMA), _fused(_variant(LLAMA)))]
    plain, fused = (
        estimate_table(graph, [accelerator], load_cluster("dgx-h100", 8), 1).all_cores.latency_s[0]
        for graph in graphs
    )
    moved = np.array([graph.moved_bytes for graph in graphs], dtype=np.float64)
    assert (fused * (1.0 + 1e-12) >= moved[1] / rate).all()
    more = moved[1] - moved[0]
    assert (fused >= plain * (1.0 - 1e-12)).all()
    assert (fused <= (plain + more / rate) * (1.0 + 1e-12)).all()

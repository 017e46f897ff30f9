"""Collectives that run beside the product next to them, chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze_opt.estimator.estimate import ModeSeconds
from phaze_opt.passes.chunked_collectives import _pairs, beside_products
from phaze_opt.precision import PrecisionName
from phaze_opt.workload.fusion import fuse
from phaze_opt.workload.graph import Collective, Gemm, Operator
from phaze_opt.workload.recipes import quantised
from phaze_opt.workload.zoo import load_workload
from tests.workload.graphs import Moved, graph_of

PRODUCT = Operator("product", gemms=(Gemm(8, 8, 8),))
SENT = Operator("sent", collective=Collective("reduce_scatter", 1024))
GRAPH = graph_of([Moved(PRODUCT, 0, 128), Moved(SENT, 128)], ((0, 1, 128),))
OVERHEAD_S = 0.25

seconds = st.sampled_from([0.0, 0.5, 1.0, 2.0, 8.0])


def chunked_s(product_s: float, hbm_s: float, link_s: float, group: int, share: float) -> float:
    """Return the time of the collective behind a product."""
    products, nothing = np.array([product_s, 0.0]), np.zeros(2)
    hbm, link = np.array([0.0, hbm_s]), np.array([0.0, link_s])
    busy = np.maximum.reduce([products, hbm, link])
    mode = ModeSeconds(busy + OVERHEAD_S, products, nothing, nothing, hbm, link, nothing)
    latency_s = beside_products(GRAPH, mode, mode, group, share)[0].latency_s
    assert latency_s[0] == mode.latency_s[0]
    return float(latency_s[1])


@given(seconds, seconds, seconds, st.sampled_from([2, 8]), st.sampled_from([0.0, 0.2, 1.0]))
def test_a_collective_never_takes_less_than_its_memories(
    product_s: float, hbm_s: float, link_s: float, group: int, share: float
) -> None:
    """Chunks hide time on the network; what passes through the HBM passes through it anyway."""
    found_s = chunked_s(product_s, hbm_s, link_s, group, share)
    whole_s = max(hbm_s, link_s) + OVERHEAD_S
    assert max(hbm_s, link_s / group) + OVERHEAD_S <= found_s * (1.0 + 1e-12)
    assert found_s <= whole_s * (1.0 + 1e-12)
    if link_s <= hbm_s or share == 1.0:
        assert found_s == pytest.approx(whole_s)


@given(seconds, seconds, st.sampled_from([2, 8]))
def test_what_is_left_of_the_network_is_what_no_product_hides(
    product_s: float, link_s: float, group: int
) -> None:
    """max(C − P · (t − 1) / t, C / t), with the product's constant as part of its time."""
    beside_s = (product_s + OVERHEAD_S) * (group - 1) / group
    exposed_s = max(link_s - beside_s, link_s / group)
    assert chunked_s(product_s, 0.0, link_s, group, 0.0) == pytest.approx(exposed_s + OVERHEAD_S)


@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8-block", "mxfp8", "nvfp4"])
def test_gathers_in_fewer_bits_have_products_beside_them(name: PrecisionName) -> None:
    """Casts before them and orders after them do not part them; what is agreed on waits."""
    model = "llama:layers=1,hidden=512,heads=8,ffn=1024,sequence=256,vocab=2048"
    workload = load_workload(model, tensor_parallel=(2,), microbatch=(1,), sequence_parallel=True)
    block = workload.variants[0].layers[1]
    for graph, stashed in ((block.forward, False), (block.backward, True)):
        fused = fuse(quantised(graph, name, stashed=stashed), "elementwise")
        pairs = dict(_pairs(fused))
        assert len(set(pairs.values())) == len(pairs)
        for index, operator in enumerate(fused.operators):
            if operator.collective is not None and operator.collective.kind != "reduce_scatter":
                gathers = operator.collective.kind == "all_gather"
                assert (index in pairs) == gathers, operator.id
                assert not gathers or fused.operators[pairs[index]].gemms

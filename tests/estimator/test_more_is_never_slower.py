"""More of anything never slows an operator, epilogue included, on one core or on all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.workload.graph import Gemm, Operator, OperatorGraph, VectorWork
from tests.estimator.products import compulsory_bytes, estimate
from tests.strategies import any_accelerators
from tests.workload.graphs import Moved, graph_of

NETWORK = load_cluster("flat-4GiB", 1)

products = st.builds(
    Gemm,
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 5000),
    batch=st.one_of(st.just(1), st.integers(2, 40), st.sampled_from([96, 768])),
)


@st.composite
def fused_products(draw: st.DrawFn) -> OperatorGraph:
    """Draw a product whose epilogue reads and writes further tensors, or keeps some on the chip."""
    gemm = draw(products)
    elements = gemm.batch * gemm.m * gemm.n
    read = draw(st.sampled_from([0, 2, 4, 12])) * elements
    written = draw(st.sampled_from([1, 2, 4, 8])) * elements
    kinds = draw(st.lists(st.sampled_from(["add", "multiply", "gelu"]), max_size=3))
    vector = tuple(VectorWork(kind, gemm.batch * gemm.m, gemm.n) for kind in kinds)
    operator = Operator("product", gemms=(gemm,), vector=vector)
    return graph_of([Moved(operator, int(compulsory_bytes(gemm)) - 2 * elements + read, written)])


MORE = ("clock_hz", "glb_bytes_per_cycle", "hbm_bytes_per_s", "l2_bytes_per_cycle", "glb_bytes",
        "l2_tc_bytes", "num_tc", "num_vc")  # fmt: skip
OF_CORES = {"num_tc", "num_vc"}
"""With more of these, one core has a smaller share of the global buffer, or none of the change."""


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    fused_products(),
    any_accelerators,
    st.sampled_from(MORE),
    st.one_of(st.sampled_from([1.01, 1.05, 1.1, 1.2, 2.0]), st.floats(1.0, 4.0)),
)
def test_more_of_anything_never_slows_an_operator(
    graph: OperatorGraph, chip: Accelerator, field: str, factor: float
) -> None:
    """No clock, bandwidth, buffer or core more costs time, whatever the epilogue moves.

    The tiling is that of the whole operator: with that of the bare product, a faster global buffer
    chose tiles with more traffic, which the epilogue's then delayed.
    """
    before = getattr(chip, field)
    if before is None:
        return
    more = max(int(before * factor), before) if isinstance(before, int) else before * factor
    changed: dict[str, Any] = {field: more}
    larger = dataclasses.replace(chip, **changed)
    old, new = (estimate(graph, each, NETWORK) for each in (chip, larger))
    modes = ["all_cores"] if field in OF_CORES else ["one_core", "all_cores"]
    for mode in modes:
        slow, fast = getattr(old, mode).latency_s, getattr(new, mode).latency_s
        assert np.all(fast <= slow * (1 + 1e-9)), mode

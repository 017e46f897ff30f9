"""Hypothesis strategies that several test modules share."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.precision import PrecisionName
from phaze_opt.units import GIB, MIB
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm

powers_of_two = st.integers(0, 8).map(lambda exponent: 2**exponent)
array_edges = st.integers(1, 8).map(lambda exponent: 2**exponent)

gemms = st.builds(
    Gemm,
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 5000),
    batch=st.integers(1, 16),
)

accelerators = st.builds(
    Accelerator,
    num_tc=powers_of_two,
    num_vc=powers_of_two,
    pe_x=array_edges,
    pe_y=array_edges,
    pe_vc=array_edges,
    glb_bytes=st.integers(1, 7).map(lambda exponent: 2**exponent * MIB),
    hbm_bytes=st.sampled_from([32 * GIB, 64 * GIB, 80 * GIB]),
)

any_accelerators = st.builds(
    Accelerator,
    num_tc=st.integers(1, 12),
    num_vc=st.integers(1, 12),
    pe_x=st.integers(1, 150),
    pe_y=st.integers(1, 150),
    pe_vc=st.integers(1, 2048),
    glb_bytes=st.integers(2 * MIB, 256 * MIB),
    glb_bytes_per_cycle=st.sampled_from([512.0, 4096.0, 16384.0]),
    hbm_bytes=st.sampled_from([16 * GIB, 80 * GIB, 0]),
    hbm_bytes_per_s=st.sampled_from([2e11, 1.2e12, 8e12]),
    clock_hz=st.sampled_from([4e8, 1.05e9, 2.1e9]),
    l2_tc_bytes=st.sampled_from([2**18, 2**20]),
    l2_vc_bytes=st.sampled_from([0, 2**16]),
    l2_bytes_per_cycle=st.sampled_from([None, 128.0, 1024.0]),
    calibration=st.builds(
        Calibration,
        array_efficiency=st.sampled_from([0.7, 1.0]),
        hbm_efficiency=st.sampled_from([0.6, 0.85]),
        vector_core_bytes_per_s=st.sampled_from([None, 4e10]),
        scan_core_bytes_per_s=st.sampled_from([None, 2.4e10]),
        operator_overhead_s=st.sampled_from([0.0, 1e-6]),
        tile_overhead_cycles=st.sampled_from([None, 40.0]),
        collective_core_share=st.sampled_from([0.0, 0.2]),
        attention_overlap=st.sampled_from([0.0, 0.4, 1.0]),
        exponentials_per_cycle=st.sampled_from([None, 16.0]),
        sustained_peak_share=st.sampled_from([None, 0.5]),
        attention_rate=st.sampled_from([None, 0.4, 1.0]),
        attention_row_cycles=st.sampled_from([None, 700.0]),
        attention_tile_queries=st.sampled_from([None, 32, 256]),
        attention_backward_overlap=st.sampled_from([None, 0.7]),
        attention_backward_rate=st.sampled_from([None, 0.6]),
        attention_backward_row_cycles=st.sampled_from([None, 5000.0]),
        attention_wide_rate=st.sampled_from([0.8, 1.0]),
        attention_fp8_rate=st.sampled_from([1.1, 1.8]),
        attention_fp8_backward_rate=st.sampled_from([1.1, 1.8]),
        attention_mxfp8_rate=st.sampled_from([1.0, 1.5]),
        attention_mxfp8_backward_rate=st.sampled_from([1.0, 1.5]),
        fp8_efficiency=st.sampled_from([0.8, 1.0]),
        fp4_efficiency=st.sampled_from([0.6, 1.0]),
    ),
    fp8_ratio=st.sampled_from([1.0, 2.0]),
    fp4_ratio=st.sampled_from([2.0, 4.0]),
    int8_ratio=st.sampled_from([0.5, 2.0]),
)
"""Chips with cores, arrays, memories, rates and calibrations of any kind, also of no paper."""


def attention_shapes(
    most_queries: int, most_more_keys: int, head_dims: Sequence[int]
) -> st.SearchStrategy[AttentionShape]:
    """Draw shapes whose last query sees every key, in grouped-query attention too."""
    return st.builds(
        lambda batch, queries, more_keys, groups, shared, size, causal: AttentionShape(
            batch, queries, queries + more_keys, groups * shared, groups, size, causal
        ),
        st.integers(1, 4),
        st.integers(1, most_queries),
        st.one_of(st.just(0), st.integers(1, most_more_keys)),
        st.integers(1, 4),
        st.integers(1, 8),
        st.sampled_from(head_dims),
        st.booleans(),
    )


def _weights(precision: PrecisionName, **options: Any) -> dict[str, Any]:
    """Return options of a training run that holds or gathers weights in a precision."""
    return {"optimizer": "adam", "precision": precision, **options}


fp8_weights = st.sampled_from(
    [
        {},
        {"accumulation_dtype": "bf16"},
        _weights("nvfp4", accumulation_dtype="fp32"),
        _weights("mxfp8", fp8_primary_weights=True),
        _weights("fp8", fp8_primary_weights=True, accumulation_dtype="bf16"),
        _weights("fp8-block", fp8_primary_weights=True, fp8_param_gather=True),
    ]
)
"""Ways to hold weights and gradients, as options of a training run at any stage of ZeRO."""

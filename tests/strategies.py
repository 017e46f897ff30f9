"""Hypothesis strategies that several test modules share."""

from hypothesis import strategies as st

from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.units import GIB, MIB
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

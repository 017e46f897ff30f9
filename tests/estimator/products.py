"""Estimates of single graphs and products, for the tests of the estimator."""

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.estimator.estimate import GraphEstimate, estimate_each
from phaze_opt.estimator.tensor_core import GemmColumn, gemm_table
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.network.cluster import Cluster
from phaze_opt.workload.graph import Gemm, OperatorGraph


def estimate(
    graph: OperatorGraph, accelerator: Accelerator, cluster: Cluster, tensor_parallel: int = 1
) -> GraphEstimate:
    """Estimate one graph."""
    (estimated,) = estimate_each([graph], accelerator, cluster, tensor_parallel)
    return estimated


def estimate_rows(
    products: list[Gemm], accelerator: Accelerator, all_cores: bool = True
) -> FloatArray:
    """Return one row per product, with the columns of `GemmColumn`."""
    shapes = np.array([(g.m, g.n, g.k, g.batch, 0, 0) for g in products], dtype=np.int64)
    cores = accelerator.num_tc if all_cores else 1
    rows: FloatArray = gemm_table(shapes, [accelerator], [cores])[0]
    return rows


def latency_cycles(gemm: Gemm, accelerator: Accelerator) -> float:
    """Cycles of a product on all cores in which its arrays work: the longest of the resources."""
    row = estimate_rows([gemm], accelerator)[0]
    return float(
        max(
            row[GemmColumn.ARRAY_CYCLES],
            (row[GemmColumn.GLB_READ_BYTES] + row[GemmColumn.GLB_WRITE_BYTES])
            / (accelerator.glb_bytes_per_cycle / accelerator.calibration.array_efficiency),
            hbm_cycles(gemm, accelerator),
        )
    )


def hbm_cycles(gemm: Gemm, accelerator: Accelerator) -> float:
    """Cycles that a product takes of the HBM on all cores, however it is tiled."""
    row = estimate_rows([gemm], accelerator)[0]
    hbm_bytes = compulsory_bytes(gemm) + row[GemmColumn.HBM_EXTRA_BYTES]
    return float(hbm_bytes * accelerator.array_clock_hz / accelerator.sustained_hbm_bytes_per_s)


def compulsory_bytes(gemm: Gemm) -> float:
    """Operands and result once, in bf16."""
    return 2.0 * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n + gemm.m * gemm.n)

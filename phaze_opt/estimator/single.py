"""One operator by itself, as a person asks for it: time, what binds, utilisation, energy.

The chip's constant per operator of a stream is left out; what a framework adds per call is the
caller's to state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from phaze_opt.errors import InputError
from phaze_opt.estimator.estimate import ENERGY_LEVELS, estimate_on_cores
from phaze_opt.estimator.gemm_kernel import ELEMENT_BYTES
from phaze_opt.estimator.tensor_core import Tiling, gemm_plan
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import Accelerator, check_chip
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.workload.graph import Gemm, Operator, OperatorGraph, VectorWork

_ALIASES = {"layernorm": "layer_norm", "rmsnorm": "rms_norm", "logsoftmax": "log_softmax"}
"""Spellings of frameworks, and the row of the vector operator table that they mean."""
_TWO_OPERANDS = frozenset({"add", "multiply", "dropout_backward"})
_ALONE = Cluster("alone", (NetworkLevel(1.0, 0.0, "switch"),))
_LARGEST = 2**40


@dataclass(frozen=True)
class SingleEstimate:
    """One operator on some cores of one accelerator.

    Attributes
    ----------
    latency_s
        The call overhead included.
    bound
        What binds: ``compute``, ``lanes``, ``glb`` or ``hbm``.
    utilisation
        Useful work over the peak of the cores it may use at the sustained clock, in [0, 1].
    energy_j, energy_by_level_j
        Dynamic energy, in total and by `ENERGY_LEVELS`.
    glb_bytes, hbm_bytes
        Traffic, everything that is read again included.
    tiling
        How a product was tiled; ``None`` for vector operators.
    further_tilings
        Where a batch runs in groups one after the other, because no tiling suits all of it:
        ``tiling`` is that of the largest group, and these are of the others. Traffic and energy
        are of all groups.
    """

    latency_s: float
    bound: str
    utilisation: float
    energy_j: float
    energy_by_level_j: Mapping[str, float]
    glb_bytes: float
    hbm_bytes: float
    tiling: Tiling | None
    further_tilings: tuple[Tiling, ...]


def estimate_gemm(
    gemm: Gemm, accelerator: Accelerator, cores: int | None = None, call_overhead_s: float = 0.0
) -> SingleEstimate:
    """Estimate one matrix product.

    Parameters
    ----------
    gemm
        Its shape.
    accelerator
        The chip.
    cores
        Tensor cores it may use; all by default.
    call_overhead_s
        What the caller's framework adds per call.

    Raises
    ------
    InputError
        If a size is not a positive whole number, there are not so many cores, the overhead is
        negative, or there is no such chip.
    """
    sizes = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "batch": gemm.batch}
    _check_sizes(sizes)
    operator = Operator(
        id="gemm",
        gemms=(gemm,),
        read_bytes=ELEMENT_BYTES * gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n),
        write_bytes=ELEMENT_BYTES * gemm.batch * gemm.m * gemm.n,
    )
    used = _check_cores(cores, accelerator.num_tc, "tensor")
    peak = 2.0 * used * accelerator.pe_x * accelerator.pe_y * accelerator.sustained_clock_hz
    shape = np.array([gemm.m, gemm.n, gemm.k, gemm.batch], dtype=np.int64)
    plan = gemm_plan(shape, accelerator, used)
    return _single(operator, accelerator, used, gemm.flops / peak, call_overhead_s, plan)


def estimate_vector(
    kind: str,
    rows: int,
    columns: int,
    accelerator: Accelerator,
    cores: int | None = None,
    call_overhead_s: float = 0.0,
) -> SingleEstimate:
    """Estimate one vector operator over ``rows × columns`` elements of bf16.

    Parameters
    ----------
    kind
        Row of the vector operator table, or a framework's spelling of it (``layernorm``).
    rows, columns
        Reductions run along the columns.
    accelerator, cores, call_overhead_s
        As for `estimate_gemm`, with vector cores.

    Raises
    ------
    InputError
        As `estimate_gemm`, or if the kind is unknown.
    """
    kind = _ALIASES.get(kind, kind)
    row = vector_operator(kind)
    _check_sizes({"rows": rows, "columns": columns})
    elements = rows * columns
    operands = 2 if kind in _TWO_OPERANDS or kind.endswith("_backward") else 1
    operator = Operator(
        id=kind,
        vector=(VectorWork(kind, rows, columns),),
        read_bytes=ELEMENT_BYTES * operands * elements,
        write_bytes=ELEMENT_BYTES * elements,
    )
    used = _check_cores(cores, accelerator.num_vc, "vector")
    peak = used * accelerator.pe_vc * accelerator.sustained_clock_hz
    return _single(operator, accelerator, used, elements * row.cycles / peak, call_overhead_s)


def _single(
    operator: Operator,
    accelerator: Accelerator,
    cores: int,
    ideal_s: float,
    call_overhead_s: float,
    plan: tuple[Tiling, ...] = (),
) -> SingleEstimate:
    """Estimate a graph of one operator."""
    check_chip(accelerator)
    if not 0.0 <= call_overhead_s < float("inf"):
        raise InputError(
            f"The call overhead is {call_overhead_s} s, but it must be finite and must not be "
            "negative."
        )
    mode = estimate_on_cores(OperatorGraph((operator,)), accelerator, _ALONE, cores)
    busy_s = {
        "compute": float(mode.tc_s[0]),
        "lanes": float(mode.vc_s[0]),
        "glb": float(mode.glb_s[0]),
        "hbm": float(mode.hbm_s[0]),
    }
    bound = max(busy_s, key=lambda resource: busy_s[resource])
    latency_s = busy_s[bound] + call_overhead_s
    levels = zip(ENERGY_LEVELS, mode.energy_by_level_j[0].tolist(), strict=True)
    return SingleEstimate(
        latency_s=latency_s,
        bound=bound,
        utilisation=ideal_s / latency_s,
        energy_j=float(mode.energy_j[0]),
        energy_by_level_j=dict(levels),
        glb_bytes=float(mode.glb_s[0])
        * accelerator.glb_bytes_per_cycle
        * accelerator.sustained_clock_hz,
        hbm_bytes=float(mode.hbm_s[0]) * accelerator.sustained_hbm_bytes_per_s,
        tiling=plan[0] if plan else None,
        further_tilings=plan[1:],
    )


def _check_sizes(sizes: dict[str, int]) -> None:
    """Refuse sizes that no operator has."""
    for name, size in sizes.items():
        if not (isinstance(size, Integral) and 1 <= size <= _LARGEST):
            raise InputError(
                f"{name} is {size}, but it must be a whole number between 1 and {_LARGEST}."
            )


def _check_cores(cores: int | None, available: int, kind: str) -> int:
    """Resolve the number of cores to use."""
    if cores is None:
        return available
    if not 1 <= cores <= available:
        raise InputError(
            f"cores is {cores}, but the accelerator has 1 to {available} {kind} cores to use."
        )
    return cores

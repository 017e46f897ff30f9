"""One operator by itself, as ``phaze-opt estimate`` shows it: time, bound, utilisation, energy.

The chip starts at its burst clock, see `phaze_opt.estimator.isolated`. Its constant per operator of
a stream is left out; the caller states the seconds that a framework adds per call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from phaze_opt.choices import Layout
from phaze_opt.errors import InputError, unknown_name
from phaze_opt.estimator.chips import hbm_flow_bytes
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.operator_table import operator_table
from phaze_opt.estimator.power_limit import LAYOUTS, accumulator_s
from phaze_opt.estimator.tensor_core import GroupTiling, gemm_plan
from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.estimator.vector_core import vector_operator
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.buildable import (
    check_attention_precision,
    check_chip,
    check_precision,
)
from phaze_opt.precision import (
    PRECISIONS,
    AttentionPrecision,
    Dtype,
    PrecisionName,
    ProductPrecision,
)
from phaze_opt.workload.attention import AttentionShape, backward_work, forward_work
from phaze_opt.workload.graph import (
    Gemm,
    Operator,
    OperatorGraph,
    Tensor,
    TensorRead,
    VectorWork,
)

_ALIASES = {"layernorm": "layer_norm", "rmsnorm": "rms_norm", "logsoftmax": "log_softmax"}
"""Names in the vector operator table by their spelling in frameworks."""
_TWO_OPERANDS = frozenset({"add", "multiply", "dropout_backward"})
"""Kinds with two operands; every other backward operator has two as well."""
_LARGEST_SIZE = 2**40


@dataclass(frozen=True)
class SingleEstimate:
    """One operator on some cores of one accelerator.

    Attributes
    ----------
    latency_s
        Time of one call, the overhead of the call included.
    bound
        Resource that is busy longest: ``compute``, ``lanes``, ``glb`` or ``hbm``; ``lanes`` too
        where the tensor cores wait for them most of their time.
    utilisation
        Time at the peak of the cores at their burst clock, divided by ``latency_s``, in [0, 1].
    energy_j, energy_by_level_j
        Dynamic energy, in total and by `ENERGY_LEVELS`.
    glb_bytes, hbm_bytes
        Traffic, repeated reads included.
    tiling
        Tiling of a product; ``None`` for vector operators. Where a batch runs in groups one after
        the other, each with its own tiling, it is that of the largest group.
    further_tilings
        Tilings of the other groups. Time, traffic and energy are those of all groups.
    """

    latency_s: float
    bound: str
    utilisation: float
    energy_j: float
    energy_by_level_j: Mapping[str, float]
    glb_bytes: float
    hbm_bytes: float
    tiling: GroupTiling | None
    further_tilings: tuple[GroupTiling, ...]


def estimate_gemm(
    gemm: Gemm,
    accelerator: Accelerator,
    cores: int | None = None,
    call_overhead_s: float = 0.0,
    *,
    layout: Layout = "tn",
    sustained: bool = False,
) -> SingleEstimate:
    """Estimate one matrix product.

    Parameters
    ----------
    gemm
        Shape of the product.
    accelerator
        The chip.
    cores
        Tensor cores that the product may use; all by default.
    call_overhead_s
        Seconds that the framework adds per call.
    layout
        Forward, data gradient or weight gradient, see `phaze_opt.estimator.power_limit`.
    sustained
        Whether it is one of many in a long run, and not alone.

    Raises
    ------
    InputError
        If a size is not a positive whole number, the chip has fewer cores, the overhead is negative
        or not finite, or the chip cannot be built or has no rate for the precision.
    """
    graph = gemm_graph(gemm, layout)
    used = _check_cores(cores, accelerator.num_tc, "tensor")
    check_precision(accelerator, gemm.precision)
    peak = array_flops_per_s(accelerator, used, gemm.precision)
    (row,) = operator_table(gemm_graph(gemm)).distinct_gemms
    plan = gemm_plan(row, accelerator.in_burst, used)
    waits_s = accumulator_s(gemm, layout, accelerator)
    alone = _Alone(accelerator, used, call_overhead_s, waits_s, sustained)
    return _single(graph, alone, gemm.flops / peak, plan)


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
        Name in the vector operator table, or its spelling in a framework (``layernorm``).
    rows, columns
        Shape; reductions run along a row.
    accelerator, cores, call_overhead_s
        As for `estimate_gemm`, but vector cores.

    Raises
    ------
    InputError
        As `estimate_gemm`, or if the kind is unknown.
    """
    graph = elementwise_graph(kind, rows, columns)
    (work,) = graph.operators[0].vector
    return _on_lanes(graph, rows * columns, work.kind, accelerator, cores, call_overhead_s)


def estimate_attention(
    shape: AttentionShape,
    accelerator: Accelerator,
    cores: int | None = None,
    call_overhead_s: float = 0.0,
    *,
    backward: bool = False,
    sustained: bool = False,
    precision: AttentionPrecision = "bf16",
) -> SingleEstimate:
    """Estimate one fused attention core.

    The utilisation counts the scores that a mask leaves, without whole tiles.

    Parameters
    ----------
    shape
        Sizes of the core.
    accelerator, cores, call_overhead_s
        As for `estimate_gemm`; the core may use as many vector cores as tensor cores.
    backward
        Whether to estimate the gradients of query, key and value instead, with the scores computed
        again.
    sustained
        As for `estimate_gemm`.
    precision
        What it multiplies in; casts are not part of it.

    Raises
    ------
    InputError
        As `estimate_gemm`, or if the key heads do not divide the query heads.
    """
    check_attention_precision(accelerator, precision)
    graph = attention_graph(shape, backward=backward, precision=precision)
    used = _check_cores(cores, accelerator.num_tc, "tensor")
    peak = array_flops_per_s(accelerator, used, precision)
    useful = shape.scores.visible / shape.scores.elements
    alone = _Alone(accelerator, used, call_overhead_s, sustained=sustained)
    return _single(graph, alone, graph.flops * useful / peak)


def estimate_cast(
    rows: int,
    columns: int,
    precision: PrecisionName,
    accelerator: Accelerator,
    cores: int | None = None,
    call_overhead_s: float = 0.0,
) -> SingleEstimate:
    """Estimate a cast of bf16 to what a recipe multiplies, with scales that are known.

    Parameters
    ----------
    rows, columns
        Shape.
    precision
        The recipe.
    accelerator, cores, call_overhead_s
        As for `estimate_gemm`, but vector cores.

    Raises
    ------
    InputError
        As `estimate_gemm`, or if nothing is cast.
    """
    if precision == "bf16":
        raise InputError("precision is bf16, which is not cast; name one of fewer bits.")
    check_precision(accelerator, precision)
    _check_sizes({"rows": rows, "columns": columns})
    graph = cast_graph(rows * columns, precision)
    return _on_lanes(graph, rows * columns, "quantise", accelerator, cores, call_overhead_s)


def array_flops_per_s(accelerator: Accelerator, cores: int, precision: ProductPrecision) -> float:
    """Return the peak of some tensor cores before the power limit takes hold.

    Parameters
    ----------
    precision
        What they multiply in; the rate is that of bf16 where the chip states none, since a kernel
        of attention may be measured all the same.
    """
    burst = accelerator.in_burst
    peak = 2.0 * cores * burst.pe_x * burst.pe_y * burst.sustained_clock_hz
    return peak * (accelerator.nominal_rate(precision) or 1.0)


def _on_lanes(
    graph: OperatorGraph,
    elements: int,
    kind: str,
    accelerator: Accelerator,
    cores: int | None,
    call_overhead_s: float,
) -> SingleEstimate:
    """Estimate a graph of one vector operator."""
    used = _check_cores(cores, accelerator.num_vc, "vector")
    peak = used * accelerator.pe_vc * accelerator.in_burst.sustained_clock_hz
    ideal_s = elements * vector_operator(kind).cycles / peak
    return _single(graph, _Alone(accelerator, used, call_overhead_s), ideal_s)


def gemm_graph(gemm: Gemm, layout: Layout = "tn") -> OperatorGraph:
    """Return a matrix product as a graph of one operator; a weight gradient has an accumulator.

    Raises
    ------
    InputError
        If a size is not a positive whole number.
    """
    _check_sizes({"m": gemm.m, "n": gemm.n, "k": gemm.k, "batch": gemm.batch})
    if layout not in LAYOUTS:
        raise unknown_name("layout", layout, LAYOUTS)
    precision = PRECISIONS[gemm.precision]
    results = gemm.batch * gemm.m * gemm.n
    operands = gemm.batch * (gemm.m * gemm.k + gemm.k * gemm.n)
    tensors = [_read(*precision.stored(operands))]
    if layout == "nt":
        tensors += [_read(results, "fp32"), _written(results, "fp32")]
    else:
        tensors.append(_written(results))
    return OperatorGraph((Operator("gemm", gemms=(gemm,)),), tuple(tensors))


def elementwise_graph(kind: str, rows: int, columns: int) -> OperatorGraph:
    """Return a vector operator over elements of bf16; the parameters are `estimate_vector`'s.

    Raises
    ------
    InputError
        If a size is not a positive whole number, or the kind is unknown.
    """
    kind = _ALIASES.get(kind, kind)
    vector_operator(kind)
    _check_sizes({"rows": rows, "columns": columns})
    elements = rows * columns
    operands = 2 if kind in _TWO_OPERANDS or kind.endswith("_backward") else 1
    operator = Operator(kind, vector=(VectorWork(kind, rows, columns),))
    return OperatorGraph((operator,), (_read(operands * elements), _written(elements)))


def cast_graph(elements: int, precision: PrecisionName) -> OperatorGraph:
    """Return a cast of elements of bf16 as a graph of one operator, with one copy of the result."""
    _check_sizes({"elements": elements})
    operator = Operator("cast", vector=(VectorWork("quantise", 1, elements),))
    stored = PRECISIONS[precision].stored(elements)
    return OperatorGraph((operator,), (_read(elements), _written(*stored)))


def attention_graph(
    shape: AttentionShape, *, backward: bool = False, precision: AttentionPrecision = "bf16"
) -> OperatorGraph:
    """Return a fused attention core as capture finds it, forward or backward.

    Raises
    ------
    InputError
        If a size is not a positive whole number, or the key heads do not divide the query heads.
    """
    sizes = dataclasses.asdict(shape)
    sizes.pop("causal")
    if not shape.window:
        sizes.pop("window")
    if not shape.value_dim:
        sizes.pop("value_dim")
    _check_sizes(sizes)
    if shape.window and not shape.causal:
        raise InputError("A window needs a causal mask: it is of the latest keys.")
    if shape.heads % shape.kv_heads:
        raise InputError(
            f"kv_heads is {shape.kv_heads}, but it must divide the {shape.heads} heads."
        )
    gemms, vector = backward_work(shape) if backward else forward_work(shape)
    positions = shape.batch * shape.queries * shape.heads
    query, result = positions * shape.head_dim, positions * shape.width
    of_keys = shape.batch * shape.keys * shape.kv_heads
    inputs = query + of_keys * (shape.head_dim + shape.width)
    statistics = shape.scores.heads * shape.queries
    # Forward: Q, K and V in; O and row statistics out. Backward: all of these and dO in; dQ, dK
    # and dV out.
    # Operands of products are narrow, the forward's result is not.
    stored = PRECISIONS[precision].stored
    tensors = (
        (
            _read(*stored(inputs + result)),
            _read(result),
            _read(statistics, "fp32"),
            _written(inputs),
        )
        if backward and precision != "bf16"
        else (_read(inputs + 2 * result), _read(statistics, "fp32"), _written(inputs))
        if backward
        else (_read(*stored(inputs)), _written(result), _written(statistics, "fp32"))
    )
    gemms = tuple([dataclasses.replace(gemm, precision=precision) for gemm in gemms])
    operator = Operator("attention", gemms=gemms, vector=vector, attention=shape.scores)
    return OperatorGraph((operator,), tensors)


def _read(elements: int, dtype: Dtype = "bf16") -> Tensor:
    """Return what a single operator reads."""
    return Tensor(elements, dtype, readers=(TensorRead(0, elements),))


def _written(elements: int, dtype: Dtype = "bf16") -> Tensor:
    """Return what a single operator writes."""
    return Tensor(elements, dtype, writers=((0, elements),), outlives=True)


@dataclass(frozen=True)
class _Alone:
    """On what one operator runs: chip, cores, seconds of the call and of an accumulator."""

    accelerator: Accelerator
    cores: int
    call_overhead_s: float
    waits_s: float = 0.0
    sustained: bool = False


def _single(
    graph: OperatorGraph, alone: _Alone, ideal_s: float, plan: tuple[GroupTiling, ...] = ()
) -> SingleEstimate:
    """Estimate one operator.

    Parameters
    ----------
    ideal_s
        Time at the peak of the cores.
    plan
        Groups of a product.
    """
    accelerator, call_overhead_s = alone.accelerator, alone.call_overhead_s
    check_chip(accelerator)
    if not 0.0 <= call_overhead_s < float("inf"):
        raise InputError(
            f"The call overhead is {call_overhead_s} s, but it must be finite and must not be "
            "negative."
        )
    isolated = estimate_isolated(graph, accelerator, alone.cores, sustained=alone.sustained)
    mode = isolated.burst
    busy_s = {
        "compute": float(mode.tc_s[0]),
        "lanes": float(mode.vc_s[0]),
        "glb": float(mode.glb_s[0]),
        "hbm": float(mode.hbm_s[0]),
    }
    bound = max(busy_s, key=lambda resource: busy_s[resource])
    latency_s = float(isolated.latency_s[0]) + alone.waits_s + call_overhead_s
    if bound == "compute" and 2.0 * float(mode.exposed_lanes_s[0]) > busy_s[bound]:
        bound = "lanes"  # for which the tensor cores wait most of their time
    levels = zip(ENERGY_LEVELS, mode.energy_by_level_j[0].tolist(), strict=True)
    return SingleEstimate(
        latency_s=latency_s,
        bound=bound,
        utilisation=ideal_s / latency_s,
        energy_j=float(mode.energy_j[0]),
        energy_by_level_j=dict(levels),
        glb_bytes=float(mode.glb_s[0])
        * accelerator.glb_bytes_per_cycle
        * (accelerator if alone.sustained else accelerator.in_burst).sustained_clock_hz,
        hbm_bytes=float(hbm_flow_bytes(mode.hbm_s, accelerator.sustained_hbm_bytes_per_s)[0]),
        tiling=plan[0] if plan else None,
        further_tilings=plan[1:],
    )


def _check_sizes(sizes: dict[str, int]) -> None:
    """Refuse sizes that are not whole numbers between 1 and the largest."""
    for name, size in sizes.items():
        if not (isinstance(size, Integral) and 1 <= size <= _LARGEST_SIZE):
            raise InputError(
                f"{name} is {size}, but it must be a whole number between 1 and {_LARGEST_SIZE}."
            )


def _check_cores(cores: int | None, available: int, kind: str) -> int:
    """Return the number of cores to use, all by default; refuse more than there are."""
    if cores is None:
        return available
    if not 1 <= cores <= available:
        raise InputError(
            f"cores is {cores}, but the accelerator has 1 to {available} {kind} cores to use."
        )
    return cores

"""Predicted against measured scans of Mamba-2: forward passes, and the kernel that ends them.

Forward passes (``data/scan_passes.csv`` and ``.toml``) are the kernels of mamba_ssm in Triton, one
after another. The single kernel (``data/scans.csv`` and ``.toml``), which joins scores and states,
is another library's with a schedule of its own: what the threads of the former are limited to
(`Calibration.scan_core_bytes_per_s`) does not hold for it, and it reads its scores in 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.precision import Dtype
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Operator, OperatorGraph, Tensor, TensorRead
from phaze_opt.workload.recurrences import KernelWork, ScanShape


def validate_scans() -> list[ValidationTable]:
    """Predict every measured scan.

    Returns
    -------
    tables
        One per chip, in the order of the data: of single kernels, then of forward passes.
    """
    single = data_table("validation", "scans.toml")
    of_passes = data_table("validation", "scan_passes.toml")
    kernels = [(single, row) for row in data_rows("validation", "scans.csv")]
    passes = [(of_passes[row["table"]], row) for row in data_rows("validation", "scan_passes.csv")]
    return [
        *_tables("state-space scans", kernels, _scan),
        *_tables("state-space scans, forward", passes, forward_scan),
    ]


def _tables(
    title: str,
    rows: Iterable[tuple[dict[str, str], dict[str, str]]],
    graph_of: Callable[[ScanShape], OperatorGraph],
) -> list[ValidationTable]:
    """Predict rows, each with its provenance, by the kernels of its shape: a table per chip."""
    grouped: dict[tuple[str, str], list[ValidationRow]] = {}
    for provenance, row in rows:
        names = ("batch", "tokens", "heads", "groups", "width", "state", "chunk")
        shape = ScanShape(*(int(row[name]) for name in names))
        chip = load_accelerator(row["accelerator"])
        kernels = estimate_isolated(graph_of(shape), chip, chip.num_tc)
        case = f"{shape.heads} heads of {shape.width}, {shape.batch}×{shape.tokens} tokens"
        case += f", {row['note']}" if row.get("note") else ""
        shown = ValidationRow(case, float(row["latency_s"]), float(kernels.latency_s.sum()))
        grouped.setdefault((row["accelerator"], provenance["measured_by"]), []).append(shown)
    return [
        ValidationTable(title, name, 0.0, source, tuple(members))
        for (name, source), members in grouped.items()
    ]


def _scan(shape: ScanShape) -> OperatorGraph:
    """Return the kernel, with what it does apart from its products before them."""
    work = shape.chunk_scan()
    operators = Operator("decay", vector=work.apart), Operator("scan", work.gemms, work.vector)
    tokens = shape.batch * shape.tokens
    results = tokens * shape.heads * shape.width
    read = (
        results,
        shape.chunks * shape.groups * shape.chunk**2,
        2 * tokens * shape.heads,
        tokens * shape.groups * shape.state,
        shape.chunks * shape.heads * shape.width * shape.state,
    )
    tensors = [_tensor(size, "bf16", None, 1) for size in read]
    written = Tensor(results, writers=((1, results),), outlives=True)
    return OperatorGraph(operators, (*tensors, written))


def forward_scan(shape: ScanShape) -> OperatorGraph:
    """Return the kernels of a forward, as a captured mixer has them."""
    names = "step_sizes", "chunk_states", "pass_states", "chunk_scores", "chunk_scan"
    works = [getattr(shape, name)() for name in names]
    *first, last = map(_operator, names, works)
    operators = (*first, Operator("chunk_scan_decay", vector=works[-1].apart), last)
    step, added, passed, scored, _, scan = range(6)
    tokens = shape.batch * shape.tokens
    steps, results = tokens * shape.heads, tokens * shape.heads * shape.width
    shared = tokens * shape.groups * shape.state  # keys, and queries
    states = shape.chunks * shape.heads * shape.width * shape.state
    return OperatorGraph(
        operators,
        (
            _tensor(steps, "bf16", None, step),
            _tensor(results, "bf16", None, added, scan),
            _tensor(shared, "bf16", None, added, scored),
            _tensor(shared, "bf16", None, scored, scan),
            _tensor(steps, "fp32", step, added, scan),
            _tensor(steps, "fp32", step, added, passed, scan),
            _tensor(states, "fp32", added, passed),
            _tensor(states, "bf16", passed, scan),
            _tensor(shape.chunks * shape.groups * shape.chunk**2, "fp32", scored, scan),
            Tensor(results, writers=((scan, results),), outlives=True),
        ),
    )


def _operator(name: str, work: KernelWork) -> Operator:
    """Return a kernel without what it does apart."""
    return Operator(name, work.gemms, work.vector)


def _tensor(elements: int, dtype: Dtype, writer: int | None, *readers: int) -> Tensor:
    """Return a tensor that operators read in full, and that one writes unless it is given."""
    writers = () if writer is None else ((writer, elements),)
    reads = tuple([TensorRead(reader, elements) for reader in readers])
    return Tensor(elements, dtype, writers=writers, readers=reads)

"""Kernels of a trace of the PyTorch profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_gemm
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.validation.kineto import validate_kineto_trace
from phaze_opt.workload.graph import Gemm

BF16 = "c10::BFloat16"


def called(number: int, name: str, shapes: list[list[int]], kind: str = BF16) -> dict[str, Any]:
    """Return a call of an operator."""
    arguments = {"External id": number, "Input Dims": shapes, "Input type": [kind] * len(shapes)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 0, "dur": 5, "args": arguments}


def kernel(number: int, name: str, microseconds: float) -> dict[str, Any]:
    """Return a kernel that a call started."""
    arguments = {"External id": number, "stream": 7}
    return {"ph": "X", "cat": "kernel", "name": name, "dur": microseconds, "args": arguments}


EVENTS = [
    called(1, "aten::mm", [[4096, 10240], [10240, 12288]]),
    kernel(1, "gemm", 1100.0),
    kernel(1, "reduce", 91.5),
    called(2, "aten::mm", [[4096, 10240], [10240, 12288]]),
    kernel(2, "gemm", 1191.5),
    called(3, "aten::gelu", [[4096, 8192]]),
    kernel(3, "vectorized", 50.0),
    called(4, "aten::_scaled_dot_product_flash_attention", [[1, 32, 4096, 128]] * 3),
    kernel(4, "flash_fwd", 300.0),
    called(5, "aten::addmm", [[16], [16, 16], [16, 16]], "float"),
    kernel(5, "sgemm", 3.0),
    called(6, "aten::sort", [[16]]),
    kernel(6, "sort", 4.0),
    kernel(7, "ncclKernel", 80.0),
    {"ph": "i", "name": "marker"},
]


def trace(path: Path, events: object = EVENTS) -> Path:
    """Write a trace."""
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_kernel_without_a_number_is_of_no_call(tmp_path: Path) -> None:
    """Though there is an operator without one too."""
    events = [called(1, "aten::gelu", [[4096, 8192]]), kernel(1, "vectorized", 50.0)]
    for event in events:
        del event["args"]["External id"]
    table, (left,) = validate_kineto_trace(trace(tmp_path / "a.json", events), "h100")
    assert table is None and left.reason.startswith("started by no operator")


def test_kernels_stand_beside_operators(tmp_path: Path) -> None:
    """Kernels of a call are summed, equal calls are one row, and nothing is left out unsaid."""
    table, left = validate_kineto_trace(trace(tmp_path / "a.json"), "h100")
    assert table is not None
    by_name = {row.case.split()[0]: row for row in table.rows}
    product = by_name["aten::mm"]
    assert product.measured == pytest.approx(1191.5e-6)
    gemm = Gemm(4096, 12288, 10240)
    assert product.predicted == estimate_gemm(gemm, load_accelerator("h100")).latency_s
    assert abs(product.error) < 0.15 and len(table.rows) == 3
    reasons = {row.case.split()[0]: row.reason for row in left}
    assert "float" in reasons["aten::addmm"] and "no operator" in reasons["aten::sort"]
    assert next(iter(reasons)) == "ncclKernel"  # the longest


def test_a_compressed_trace_is_the_same(tmp_path: Path) -> None:
    """Whatever packs it."""
    plain = trace(tmp_path / "a.json")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    found = validate_kineto_trace(tmp_path / "b.json.gz", "h100")[0]
    known = validate_kineto_trace(plain, "h100")[0]
    assert found and known and found.rows == known.rows


@pytest.mark.parametrize(
    "events", [[], {}, None, [{"ph": "X", "cat": "kernel", "name": "a", "args": {}, "dur": "x"}]]
)
def test_what_is_no_trace_is_refused(events: object, tmp_path: Path) -> None:
    """One sentence."""
    with pytest.raises(InputError, match="is not valid"):
        validate_kineto_trace(trace(tmp_path / "a.json", events), "h100")
    (tmp_path / "a.json").write_bytes(b"\x1f\x8bbroken")
    with pytest.raises(InputError, match="is not valid"):
        validate_kineto_trace(tmp_path / "a.json", "h100")

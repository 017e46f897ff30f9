"""Predicted against measured kernels of a trace of the PyTorch profiler (Kineto).

A trace that was recorded with shapes names, for every kernel, the operator of the framework that
started it, and the operator's operands. Products, elementwise operators, norms, softmax and fused
attention in 16 bits are estimated; all other kernels are listed with the reason. Kernels that one
call of an operator starts are summed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from phaze_opt.codec import from_json, read_file
from phaze_opt.errors import InputError
from phaze_opt.estimator.single import estimate_attention, estimate_gemm, estimate_vector
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.limits import MOST_DATA_BYTES, is_finite
from phaze_opt.validation.measured import UnexpressedRow, ValidationRow, ValidationTable
from phaze_opt.workload.attention import AttentionShape
from phaze_opt.workload.graph import Gemm

_WHAT = "trace"
_S_PER_US = 1e-6
_SIXTEEN_BITS = ("c10::BFloat16", "c10::Half")
_VECTOR = {
    **{"aten::gelu": "gelu", "aten::silu": "silu", "aten::relu": "relu", "aten::tanh": "tanh"},
    **{"aten::add": "add", "aten::add_": "add", "aten::mul": "multiply", "aten::mul_": "multiply"},
    **{"aten::_softmax": "softmax", "aten::_log_softmax": "log_softmax"},
    **{"aten::native_layer_norm": "layer_norm", "aten::_fused_rms_norm": "rms_norm"},
    **{"aten::copy_": "copy", "aten::gelu_backward": "gelu_backward"},
    "aten::silu_backward": "silu_backward",
}
"""Kinds of vector operators by the name of the framework's."""
_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
)

Shape = Sequence[int]


@dataclass(frozen=True)
class _Call:
    """One call of an operator: its name, and shapes and types of its operands."""

    name: str
    shapes: tuple[Shape, ...]
    types: tuple[str, ...]


def validate_kineto_trace(
    path: Path, accelerator: str
) -> tuple[ValidationTable | None, tuple[UnexpressedRow, ...]]:
    """Predict the kernels of a trace.

    Parameters
    ----------
    path
        JSON as the profiler exports it, perhaps compressed with gzip.
    accelerator
        On what it was recorded.

    Returns
    -------
    table, unexpressed
        One row per operator and shapes, with the mean of its calls; ``None`` where nothing is
        predicted. Then what is not, with its reason, the longest in total first.

    Raises
    ------
    NotFoundError
        If there is no such file.
    InputError
        If it is no trace, or the chip is unknown.
    """
    chip = load_accelerator(accelerator)
    kernels, calls = _read(path)
    measured: dict[_Call, dict[int, float]] = {}
    left: dict[tuple[str, str], float] = {}
    for name, started_by, seconds in kernels:
        call = calls.get(started_by)
        if call is None:
            reason = "started by no operator that the trace has with shapes"
            left[name, reason] = left.get((name, reason), 0.0) + seconds
            continue
        of_call = measured.setdefault(call, {})
        of_call[started_by] = of_call.get(started_by, 0.0) + seconds
    rows = []
    for call, times_s in measured.items():
        predicted = _predicted_s(call, chip)
        mean_s = sum(times_s.values()) / len(times_s)
        if isinstance(predicted, str):
            left[call.name, predicted] = left.get((call.name, predicted), 0.0) + sum(
                times_s.values()
            )
        elif mean_s > 0.0:
            shapes = " ".join("×".join(map(str, shape)) for shape in call.shapes if shape)
            rows.append(ValidationRow(f"{call.name} {shapes}", mean_s, predicted))
    table = f"trace {path.name}"
    longest = sorted(left.items(), key=lambda item: -item[1])
    unexpressed = tuple(
        UnexpressedRow(table, f"{name[:80]} ({seconds * 1e3:.3f} ms)", reason)
        for (name, reason), seconds in longest
    )
    if not rows:
        return None, unexpressed
    return ValidationTable(table, accelerator, 0.0, str(path), tuple(rows)), unexpressed


def _read(path: Path) -> tuple[list[tuple[str, int, float]], dict[int, _Call]]:
    """Return kernels (name, who started it, seconds), and calls of operators by their number."""
    document = from_json(_content(path), dict[str, Any], f"{_WHAT} {path}")
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise InputError(f"The {_WHAT} {path} is not valid: it has no list traceEvents.")
    kernels: list[tuple[str, int, float]] = []
    calls: dict[int, _Call] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        arguments = event.get("args")
        kind = str(event.get("cat", "")).lower()
        if not isinstance(arguments, dict) or kind not in ("kernel", "cpu_op", "operator"):
            continue
        number = arguments.get("External id", arguments.get("external id"))
        if not isinstance(number, int):
            number = -1
        name = str(event.get("name", ""))
        if kind == "kernel":
            kernels.append((name, number, _seconds(event.get("dur"), path)))
        elif number >= 0 and ("Input Dims" in arguments or "Input dims" in arguments):
            shapes = arguments.get("Input Dims", arguments.get("Input dims"))
            calls[number] = _Call(name, *_operands(shapes, arguments.get("Input type")))
    if not kernels:
        raise InputError(f"The {_WHAT} {path} is not valid: it has no kernel of a device.")
    return kernels, calls


def _content(path: Path) -> bytes:
    """Return the JSON of a file, compressed or not."""
    content = read_file(path, _WHAT)
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.open(path) as stream:
            content = stream.read(MOST_DATA_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"The {_WHAT} {path} is not valid: {error}.") from None
    if len(content) > MOST_DATA_BYTES:
        raise InputError(f"The {_WHAT} {path} unpacks to more than {MOST_DATA_BYTES:,} bytes.")
    return content


def _seconds(duration_us: object, path: Path) -> float:
    """Return the time of a kernel."""
    if (
        isinstance(duration_us, bool)
        or not isinstance(duration_us, int | float)
        or not is_finite(duration_us)
        or duration_us < 0
    ):
        raise InputError(f"The {_WHAT} {path} is not valid: a kernel has no duration.")
    return duration_us * _S_PER_US


def _operands(shapes: object, types: object) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    """Return shapes and types of operands; of what is no tensor, an empty shape."""
    listed = shapes if isinstance(shapes, list) else []
    plain = tuple(
        tuple(shape)
        if isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
        else ()
        for shape in listed
    )
    named = types if isinstance(types, list) else []
    return plain, tuple(map(str, named))


def _predicted_s(call: _Call, chip: Accelerator) -> float | str:
    """Return the predicted seconds of a call, or why it has none."""
    predict = _PREDICTORS.get(call.name) or (_vector_s if call.name in _VECTOR else None)
    if predict is None:
        return "no operator of the model"
    tensors = [kind for kind, shape in zip(call.types, call.shapes, strict=False) if shape]
    other = next((kind for kind in tensors if kind not in _SIXTEEN_BITS), None)
    if other is not None:
        return f"in {other}, not in 16 bits"
    try:
        return predict(call, chip)
    except InputError as error:
        return str(error)


def _product_s(call: _Call, chip: Accelerator) -> float:
    """Predict a product from the shapes of its last two operands."""
    pairs = [shape for shape in call.shapes if len(shape) >= 2]
    if len(pairs) < 2:
        raise InputError("its operands are no matrices")
    left, right = pairs[-2:]
    batch = left[0] if call.name == "aten::bmm" else 1
    rows = left[-2] if call.name == "aten::bmm" else prod(left[:-1])
    columns = right[-2] if call.name == "aten::linear" else right[-1]
    return estimate_gemm(Gemm(rows, columns, left[-1], batch), chip).latency_s


def _vector_s(call: _Call, chip: Accelerator) -> float:
    """Predict an elementwise operator, a norm or a softmax along the last axis."""
    shape = max(call.shapes, key=lambda each: prod(each) if each else 0, default=())
    if not shape:
        raise InputError("its operands have no shape")
    rows, columns = prod(shape[:-1]), shape[-1]
    return estimate_vector(_VECTOR[call.name], rows, columns, chip).latency_s


def _attention_s(call: _Call, chip: Accelerator) -> float:
    """Predict a fused attention core; whether it is causal the shapes do not say: taken to be."""
    shapes = [shape for shape in call.shapes if len(shape) == 4]
    if len(shapes) < 3:
        raise InputError("its operands are no heads")
    (batch, heads, queries, width), (_, groups, keys, _), (*_, value_width) = shapes[:3]
    sizes = (batch, queries, keys, heads, groups, width)
    shape = AttentionShape(*sizes, causal=queries == keys, value_dim=value_width)
    return estimate_attention(shape, chip).latency_s


_PREDICTORS: Mapping[str, Callable[[_Call, Accelerator], float]] = {
    **dict.fromkeys(("aten::mm", "aten::addmm", "aten::bmm", "aten::linear"), _product_s),
    **dict.fromkeys(_ATTENTION, _attention_s),
}

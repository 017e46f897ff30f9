"""Factors belong to a chip or a kind of link; none belongs to a model, a row or an operator."""

from __future__ import annotations

import ast
import csv
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from phaze_opt.estimator.vector_core import VectorOperator, vector_operators
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.kernels import KERNELS
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.network.collective import COLLECTIVES
from phaze_opt.workload.graph import VECTOR_KINDS
from phaze_opt.workload.zoo import model_names

PER_CHIP = {
    "sustained_clock_hz",
    "burst_clock_hz",
    "array_efficiency",
    "usable_hbm_share",
    "hbm_efficiency",
    "vector_core_bytes_per_s",
    "scan_core_bytes_per_s",
    "operator_overhead_s",
    "tile_overhead_cycles",
    "collective_core_share",
    "attention_overlap",
    "exponentials_per_cycle",
    "sustained_peak_share",
    "array_rate_low",
    "array_rate_high",
    "hbm_rate_low",
    "hbm_rate_high",
    "fp8_efficiency",
    "fp8_block_efficiency",
    "fp8_block_gradient_efficiency",
    "fp4_efficiency",
    "int8_efficiency",
}
"""Fields that may be calibrated for a chip: measured once, whatever runs on it."""

PER_KERNEL = {
    "attention_overlap",
    "attention_rate",
    "attention_row_cycles",
    "attention_tile_queries",
    "attention_backward_overlap",
    "attention_backward_rate",
    "attention_backward_row_cycles",
    "attention_wide_rate",
    "attention_fp8_rate",
    "attention_fp8_backward_rate",
    "attention_mxfp8_rate",
    "attention_mxfp8_backward_rate",
    "exponentials_per_cycle",
}
"""Fields that may be calibrated for a kernel of fused attention on a chip."""

PER_LINK = {
    "efficiency",
    "latency_s",
    "launch_s",
    "ramp_bytes",
    "own_part_cost",
    "halving",
    "in_switch_efficiency",
    "in_switch_latency_s",
}
"""Fields that may be calibrated for a kind of link."""

STATED_OF_LINK = {
    *("bandwidth_bytes_per_s", "links", "topology", "group_size", "axes"),
    *("taper", "leaf_devices"),
}
"""Fields that the maker states."""

PACKAGE = Path(str(resources.files("phaze_opt")))
MEASURED = PACKAGE / "validation" / "data"
PRODUCTS = {"gemm", "matmul", "mm", "bmm", "addmm", "baddbmm", "attention", "flash", "linear"}
MODELLING_ROOMS = ("estimator", "hardware", "network", "scheduling", "passes", "placement")
MODELLING_MODULES = ("evaluation", "point", "training")
DATA_FILES = sorted(
    path for room in MODELLING_ROOMS for path in PACKAGE.glob(f"{room}/data/*.toml")
)
MODELLING_FILES = sorted(
    [
        *(path for room in MODELLING_ROOMS for path in (PACKAGE / room).glob("*.py")),
        *(PACKAGE / f"{name}.py" for name in MODELLING_MODULES),
    ]
)


def measured_rows() -> Iterator[dict[str, str]]:
    """Yield every measured row that comes with the package."""
    for path in sorted(MEASURED.glob("*.csv")):
        yield from csv.DictReader(path.read_text("utf-8").splitlines())


def row_labels() -> set[str]:
    """Return the names of measured tables, rows and models."""
    columns = ("table", "case", "model")
    return {row[column] for row in measured_rows() for column in columns if column in row}


def names_of_work() -> set[str]:
    """Return the names of operators, models and rows; none may have a factor."""
    return {*VECTOR_KINDS, *PRODUCTS, *COLLECTIVES, *model_names(), *row_labels()}


def table(room: str, name: str) -> dict[str, Any]:
    """Read one data file of a room."""
    return tomllib.loads((PACKAGE / room / "data" / name).read_text("utf-8"))


def keys(value: object) -> Iterator[str]:
    """Yield every key of nested tables whose value is not text (sources are text)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(inner, str):
                yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def test_a_chip_is_calibrated_by_what_is_measured_once() -> None:
    """The calibration has these fields and no other, each with a source and a confidence."""
    assert {field.name for field in fields(Calibration)} == PER_CHIP | PER_KERNEL
    chips = table("hardware", "accelerators.toml")
    sources = chips.pop("sources")
    stated = {field.name for field in fields(Accelerator)} | {"description", "kernel", "kernels"}
    stated.add("base")
    for chip in chips.values():
        assert chip.keys() <= stated
        kernels = [*chip.get("kernels", {}).values()]
        assert all(kernel.keys() <= PER_KERNEL for kernel in kernels)
        own = chip.get("calibration", {})
        assert own.keys() <= PER_CHIP
        for entry in [*own.values(), *(one for kernel in kernels for one in kernel.values())]:
            value, source, confidence = entry
            assert isinstance(value, (int, float))
            assert sources[source]
            assert confidence in ("high", "medium", "low")


def test_a_link_is_calibrated_by_what_is_measured_once() -> None:
    """A level has these fields and no other, and its cluster names the source."""
    assert {field.name for field in fields(NetworkLevel)} == PER_LINK | STATED_OF_LINK
    allowed = {field.name for field in fields(Cluster)} - {"name", "devices"}
    for cluster in table("network", "clusters.toml").values():
        assert cluster.keys() <= allowed
        assert cluster["source"]
        for level in cluster["levels"]:
            assert level.keys() <= PER_LINK | STATED_OF_LINK


@pytest.mark.parametrize("path", DATA_FILES, ids=lambda path: path.name)
def test_no_number_is_keyed_by_operator_model_or_row(path: Path) -> None:
    """No key of the hardware data names what runs on it; the lanes' table counts cycles only."""
    if path.name == "vector_operators.toml":
        counted = {field.name for field in fields(VectorOperator)}
        for section in table(path.parents[1].name, path.name).values():
            for row in section.values():
                assert row.keys() <= counted
        counts = {"cycles", "exponential_cycles", "reads", "cached_reads", "derivation"}
        assert counted == counts
        return
    forbidden = names_of_work()
    for key in keys(table(path.parents[1].name, path.name)):
        if key in PER_CHIP | PER_KERNEL or key in KERNELS:
            continue  # of the chip or of a kernel, whatever model or row runs on it
        words = {key, *re.split(r"[_\-. ]", key)}
        assert not words & forbidden, f"{path.name} has the key {key!r}"


def test_lane_cycles_are_counted_and_not_fitted() -> None:
    """Cycles per element are small whole numbers with a derivation, and so are the reads."""
    for kind, row in vector_operators().items():
        assert row.cycles == int(row.cycles), kind
        assert 1 <= row.cycles <= 32, kind
        assert row.reads in (1, 2, 3), kind
        assert row.cached_reads in (0, 1), kind
        assert row.derivation, kind


@pytest.mark.parametrize(
    "path", MODELLING_FILES, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_no_factor_hides_in_the_code(path: Path) -> None:
    """No number is looked up by the name of a model, a row or an operator, and none is compared."""
    kinds = names_of_work() - set(COLLECTIVES)  # whose bytes and steps follow from their algorithms
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = {name for key, value in pairs if _is_number(value) for name in _strings(key)}
        elif isinstance(node, ast.Compare):
            found = {name for side in (node.left, *node.comparators) for name in _strings(side)}
        elif isinstance(node, ast.MatchValue):
            found = set(_strings(node.value))
        else:
            continue
        assert not found & kinds, f"{path.name}, line {getattr(node, 'lineno', 0)}"


@pytest.mark.parametrize(
    "path", MODELLING_FILES, ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_measured_rows_are_not_read_by_the_model(path: Path) -> None:
    """Only the validation reads what was measured; the model never sees it."""
    strings = {
        node.value
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    files = {file.name for file in MEASURED.iterdir()}
    assert not strings & files


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is a plain number."""
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _strings(node: ast.expr | None) -> Iterator[str]:
    """Yield the plain strings of an expression."""
    if node is not None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.value

"""Predicted against measured products in fewer bits than 16, and casts to them.

Products with a scale per block of fp8, and in nvfp4, are calls that cast their activation first, as
those of `phaze_opt.validation.products`; what a call holds beside its product belongs to the table
of a chip and a framework. There are rows where frameworks agree: none of fp8-block on the B200,
where they differ by half, and none in mxfp8, which nobody published. Weight gradients with such
scales, which slow arrays more than other products do, stand apart, as kernels without a cast.

Fused attention is that of kernels that train, without the casts before them.

Casts are kernels that know their scale: they read 2 bytes of an element and write 1.
"""

from __future__ import annotations

from typing import cast

from phaze_opt.calibration.quantised_products import QuantisedCalls
from phaze_opt.codec import data_rows, data_table
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.single import cast_graph, estimate_attention, gemm_graph
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator, load_accelerator
from phaze_opt.precision import AttentionPrecision, PrecisionName
from phaze_opt.validation.attention_training import DIRECTIONS, attention_case, attention_shape
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.graph import Gemm


def validate_narrow_products() -> list[ValidationTable]:
    """Predict every measured product with scales per block.

    Returns
    -------
    tables
        One for each chip, framework and precision, in the order of the data.
    """
    provenance = data_table("validation", "products_narrow.toml")
    grouped: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in data_rows("validation", "products_narrow.csv"):
        key = row["chip"], row["framework"], row["precision"]
        grouped.setdefault(key, []).append(row)
    tables = []
    for (part, framework, precision), rows in grouped.items():
        name = provenance["accelerator"][part]
        constants = provenance["calls"][precision][part][framework]
        gemms = [Gemm(int(row["m"]), int(row["n"]), int(row["k"])) for row in rows]
        late = framework in provenance["writes_late"]
        chip, recipe = load_accelerator(name), cast(PrecisionName, precision)
        calls = QuantisedCalls(gemms, chip, recipe, writes_late=late)
        predicted = tuple(
            ValidationRow(
                case=f"gemm {gemm.m}×{gemm.n}×{gemm.k}, {framework}",
                measured=float(row["latency_s"]),
                predicted=float(seconds),
                assumed=f"{constants['quantisation_bytes']:g} B to quantise an element of the "
                + "activation"
                + ", results written when all is multiplied" * late,
            )
            for row, gemm, seconds in zip(rows, gemms, calls.seconds(constants), strict=True)
        )
        title = f"gemm {precision} ≥10 GFLOP, {framework}"
        source = f"{provenance['measured_by']}, {rows[0]['source'].rpartition(' ')[2]}"
        tables.append(ValidationTable(title, name, constants["call_overhead_s"], source, predicted))
    return tables


def validate_narrow_gradients() -> list[ValidationTable]:
    """Predict every measured weight gradient with scales per block of fp8.

    Returns
    -------
    tables
        One for each chip, in the order of the data.
    """
    provenance = data_table("validation", "weight_gradients_narrow.toml")
    grouped: dict[str, list[ValidationRow]] = {}
    for row in data_rows("validation", "weight_gradients_narrow.csv"):
        name = provenance["accelerator"][row["chip"]]
        chip = load_accelerator(name)
        m, n, k, batch = (int(row[size]) for size in ("m", "n", "k", "batch"))
        gemm = Gemm(m, n, k, batch, "fp8-block-gradient")
        predicted = ValidationRow(
            f"weight gradient {gemm.batch}×{gemm.m}×{gemm.n}×{gemm.k}",
            gemm.flops / (float(row["tflops_per_s"]) * 1e12),
            float(estimate_isolated(gemm_graph(gemm), chip, chip.num_tc).latency_s[0]),
            source=row["source"],
        )
        grouped.setdefault(name, []).append(predicted)
    title, by = "weight gradients, fp8-block", provenance["measured_by"]
    return [ValidationTable(title, name, 0.0, by, tuple(rows)) for name, rows in grouped.items()]


def validate_narrow_attention() -> list[ValidationTable]:
    """Predict every measured kernel of fused attention in fewer bits.

    Returns
    -------
    tables
        One for each chip, precision and direction, in the order of the data.
    """
    provenance = data_table("validation", "attention_narrow.toml")
    grouped: dict[tuple[str, str, str, str], list[ValidationRow]] = {}
    for row in data_rows("validation", "attention_narrow.csv"):
        name, kernel, precision = row["accelerator"], row["kernel"], row["precision"]
        key = name, kernel, precision, DIRECTIONS[row["direction"]]
        chip = with_kernel(find_accelerator(name), kernel).accelerator
        estimated = estimate_attention(
            attention_shape(row),
            chip,
            backward=row["direction"] == "bwd",
            sustained=True,
            precision=cast(AttentionPrecision, precision),
        )
        case = attention_case(row)
        predicted = ValidationRow(
            case, float(row["latency_s"]), estimated.latency_s, source=row["source"]
        )
        grouped.setdefault(key, []).append(predicted)
    return [
        ValidationTable(
            f"attention {kernel} {precision}, {direction}",
            name,
            0.0,
            provenance["measured_by"],
            tuple(members),
        )
        for (name, kernel, precision, direction), members in grouped.items()
    ]


def validate_casts() -> list[ValidationTable]:
    """Predict every measured cast, without a constant per call.

    Returns
    -------
    tables
        One for each chip and framework, in the order of the data.
    """
    provenance = data_table("validation", "casts.toml")
    grouped: dict[tuple[str, str], list[ValidationRow]] = {}
    for row in data_rows("validation", "casts.csv"):
        name = provenance["accelerator"][row["chip"]]
        chip, precision = load_accelerator(name), cast(PrecisionName, row["precision"])
        rows, columns = int(row["rows"]), int(row["columns"])
        graph = cast_graph(rows * columns, precision)
        seconds = float(estimate_isolated(graph, chip, chip.num_tc).latency_s[0])
        predicted = ValidationRow(
            f"cast {rows}×{columns} to {precision}, {row['framework']}",
            float(row["latency_s"]),
            seconds,
            source=row["source"],
        )
        grouped.setdefault((name, row["framework"]), []).append(predicted)
    return [
        ValidationTable(
            f"cast to fp8, {framework}", name, 0.0, provenance["measured_by"], tuple(members)
        )
        for (name, framework), members in grouped.items()
    ]

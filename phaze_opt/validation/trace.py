"""Predicted against measured kernels of a training run of DeepSeek-V3 with scales per block of fp8.

What was published is the trace of one pair of forward and backward of four layers with experts, run
beside each other so that one computes while the other exchanges tokens. Kernels are summed: all
that compute, casts among them, and what exchanges tokens. Compute has the parts of a layer that run
again, and gradients are added to those of other microbatches by the products that make them. The
union is the longer of the two, since compute runs on the multiprocessors that the exchanges leave.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phaze_opt.codec import data_rows, data_table
from phaze_opt.degrees import Degrees
from phaze_opt.hardware.kernels import with_kernel
from phaze_opt.hardware.presets import find_accelerator
from phaze_opt.network.presets import load_cluster
from phaze_opt.passes.layer_cost import added_parameters
from phaze_opt.point import Point, cost_point
from phaze_opt.training import Training
from phaze_opt.validation.measured import ValidationRow, ValidationTable
from phaze_opt.workload.casts import is_cast
from phaze_opt.workload.zoo import load_workload


def validate_trace() -> list[ValidationTable]:
    """Predict the sums of kernels of the published trace: compute, casts, exchanges and union."""
    run = data_table("validation", "deepseek_trace.toml")
    predicted_s = _predicted_s(run)
    rows = tuple(
        ValidationRow(
            row["quantity"],
            float(row["measured_s"]),
            predicted_s[row["quantity"]],
            assumed=run["assumed"],
            source=row["source"],
        )
        for row in data_rows("validation", "deepseek_trace.csv")
    )
    return [ValidationTable(run["table"], run["accelerator"], 0.0, run["measured_by"], rows)]


def _predicted_s(run: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of every kind of kernel in the forwards and backwards of the layers."""
    devices, free = run["devices"], run["multiprocessors"]
    chip = with_kernel(find_accelerator(run["accelerator"]), run["attention_kernel"]).accelerator
    training = Training(
        devices,
        optimizer="adam",
        expert_parallel=devices,
        dispatcher="deepep",
        dispatch_precision="fp8",
        precision="fp8-block",
        recompute="selective",
        recompute_parts=run["recompute_parts"],
        fused_accumulation=True,
    )
    workload = load_workload(run["model"], tensor_parallel=(1,), microbatch=(1,))
    cluster = load_cluster(run["cluster"], devices)
    left = replace(chip, num_tc=free, num_vc=free)
    costed = cost_point(Point(workload, left, cluster, training, Degrees(1, devices, 1)))
    cost = costed.costs[1]
    ((layer, passes),) = [
        (layer, own.passes)
        for layer, own in zip(cost.distinct, cost.passes, strict=True)
        if layer.name == run["layer"]
    ]
    added_s = added_parameters([layer]) * costed.problem.accumulation_s_per_parameter
    sums = {"compute": run["layers"] * added_s, "casts": 0.0, "exchanges": 0.0}
    for scheduled in passes.values():
        for operator, timed in zip(
            scheduled.graph.operators, scheduled.problem.operators, strict=True
        ):
            kind = "compute" if operator.collective is None else "exchanges"
            sums[kind] += run["layers"] * timed.intra_op_latency_s
            if is_cast(operator):
                sums["casts"] += run["layers"] * timed.intra_op_latency_s
    return {**sums, "union": max(sums["compute"], sums["exchanges"])}

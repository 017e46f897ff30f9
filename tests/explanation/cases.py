"""Points for the tests: a model of one layer with any graph, and small transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from phaze_opt.evaluation import Evaluation, evaluate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.hardware.measured_constants import Calibration
from phaze_opt.hardware.presets import load_accelerator
from phaze_opt.network.cluster import Cluster, NetworkLevel
from phaze_opt.passes.scheduled import ScheduledLayer
from phaze_opt.point import Placing, Point, cost_point
from phaze_opt.scheduling.schedule_problem import Schedule
from phaze_opt.training import Training
from phaze_opt.units import GIB, MIB
from phaze_opt.workload.graph import Operator, Workload
from phaze_opt.workload.zoo import load_workload
from tests.workload.graphs import Moved, graph_of

TINY = "gpt:layers=4,hidden=64,heads=4,sequence=64,vocab=256"
TINY_LLAMA = "llama:layers=4,hidden=128,heads=4,ffn=256,sequence=128,vocab=256"
TENSOR_DEGREES = (1, 2, 4)

CHIP = Accelerator(
    num_tc=4,
    num_vc=4,
    pe_x=32,
    pe_y=32,
    pe_vc=32,
    glb_bytes=16 * MIB,
    glb_bytes_per_cycle=8192.0,
    hbm_bytes=16 * GIB,
    calibration=Calibration(operator_overhead_s=0.0),
)
"""Some chip without a constant per operator, so that one resource can bind alone."""


def load_tiny(training: Training, tensor: int | None) -> Workload:
    """Load a small transformer as `phaze_opt.workload.zoo.LoadWorkload` says."""
    return tiny(
        microbatch=training.microbatch,
        sequence_parallel=training.sequence_parallel,
        tensor=tensor,
    )


def tiny(
    *, microbatch: int, sequence_parallel: bool = False, tensor: int | None = None
) -> Workload:
    """Return a small transformer, at one tensor degree or at all."""
    return _tiny(microbatch, sequence_parallel, TENSOR_DEGREES if tensor is None else (tensor,))


@cache
def _tiny(microbatch: int, sequence_parallel: bool, tensor_degrees: tuple[int, ...]) -> Workload:
    return load_workload(
        TINY,
        tensor_parallel=tensor_degrees,
        microbatch=(microbatch,),
        sequence_parallel=sequence_parallel,
    )


def network(devices: int, bytes_per_s: float = 100e9, latency_s: float = 0.0) -> Cluster:
    """Return a flat network."""
    return Cluster("flat", (NetworkLevel(bytes_per_s, latency_s, "switch"),), devices)


def point_of(
    operators: Sequence[Operator | Moved],
    chip: Accelerator = CHIP,
    edges: Sequence[tuple[int, int, int]] = (),
    cluster: Cluster | None = None,
) -> Point:
    """Return a point whose only layer has one graph forward and backward, at tensor degree 2."""
    (variant,) = tiny(microbatch=1, tensor=2).variants
    moved = [operator if isinstance(operator, Moved) else Moved(operator) for operator in operators]
    graph = graph_of(moved, edges)
    layer = replace(variant.layers[0], forward=graph, backward=graph)
    alone = replace(variant, layers=(layer,), nodes=(("only", 0),), edges=())
    workload = Workload("one layer", 1, layer.parameters, (alone,))
    return Point(workload, chip, cluster or network(2), Training(1), (1, 1, 2), fusion="none")


def passes_of(point: Point) -> ScheduledLayer:
    """Schedule the first layer of a point at its first tensor degree."""
    return next(iter(cost_point(point, {}).costs.values())).passes[0]


def crowded(hbm_bytes: int, placement: Placing = "solve", **options: Any) -> Point:
    """Return a point with so little memory."""
    chip = replace(load_accelerator("tpuv4-lanes"), hbm_bytes=hbm_bytes)
    given: dict[str, Any] = {"global_batch": 32, "microbatch": 4, "optimizer": "adam", **options}
    training = Training(**given)
    workload = tiny(
        microbatch=training.microbatch,
        sequence_parallel=training.sequence_parallel,
        tensor=placement[2] if isinstance(placement, tuple) else None,
    )
    return Point(workload, chip, network(16), training, placement)


def evaluated(point: Point) -> Evaluation:
    """Evaluate a point as a user would, without what explaining keeps."""
    return evaluate(
        point.workload,
        point.accelerator,
        point.cluster,
        point.training,
        point.placement,
        fusion=point.fusion,
        lane_rate=point.lane_rate,
        cache=_schedules,
    )


_schedules: dict[str, Schedule] = {}
"""Those of evaluations; explaining has its own."""

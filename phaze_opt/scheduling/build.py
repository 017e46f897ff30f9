"""From a graph and its estimates to the scheduling problem of one accelerator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phaze_opt.estimator.estimate import GraphEstimate, ModeEstimate
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.scheduling.problem import (
    CoreType,
    IntraOperatorRule,
    ScheduleOperator,
    ScheduleProblem,
)
from phaze_opt.workload.graph import Operator, OperatorGraph

FloatArray = npt.NDArray[np.float64]

BANDWIDTH_STEPS = 100
"""Shares of a bandwidth are rounded up to this many steps."""
_ROUNDING_SLACK = 1e-9


def core_type(operator: Operator) -> CoreType:
    """Return the cores that an operator occupies."""
    if operator.gemms:
        return "TC+VC" if operator.vector else "TC"
    return "VC" if operator.vector else "none"


def build_problem(
    name: str,
    graph: OperatorGraph,
    estimate: GraphEstimate,
    accelerator: Accelerator,
    intra_operator: IntraOperatorRule = "exclusive",
) -> ScheduleProblem:
    """Join operators, their two modes and the cores of the chip.

    The share of a bandwidth is its busy time over the operator's latency, rounded up to a
    hundredth: an operator that saturates takes all of it. Shares are rigid while the operator runs,
    which is pessimistic, since a real operator would slow down and let others in.
    """
    one, every = estimate.one_core, estimate.all_cores
    rows = np.concatenate(
        [
            [one.latency_s, every.latency_s],
            _shares([one.hbm_s, one.glb_s, one.link_s], one),
            _shares([every.hbm_s, every.glb_s], every),
        ]
    )
    operators = tuple(
        ScheduleOperator(operator.id, core_type(operator), *values)
        for operator, values in zip(graph.operators, rows.T.tolist(), strict=True)
    )
    return ScheduleProblem(
        name=name,
        num_tc=accelerator.num_tc,
        num_vc=accelerator.num_vc,
        operators=operators,
        edges=tuple((source, destination) for source, destination, _ in graph.edges),
        intra_operator=intra_operator,
        serial=not accelerator.concurrent_operators,
    )


def _shares(busy_s: Sequence[FloatArray], mode: ModeEstimate) -> FloatArray:
    """Busy time of some resources over latency, rounded up to `BANDWIDTH_STEPS`."""
    latency_s = np.where(mode.latency_s > 0.0, mode.latency_s, 1.0)
    steps = np.ceil(np.array(busy_s) / latency_s * BANDWIDTH_STEPS - _ROUNDING_SLACK)
    return np.asarray(np.minimum(steps, BANDWIDTH_STEPS) / BANDWIDTH_STEPS)

"""The bandwidth of a chip's HBM from measured vector operators.

Large operators of few cycles per element wait for the HBM, so that their times give its efficiency.
The lanes have no constant: their cycles are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import FloatArray
from phaze_opt.calibration.constants import Constant, Fit
from phaze_opt.calibration.least_squares import fit
from phaze_opt.estimator.isolated import estimate_isolated
from phaze_opt.estimator.single import elementwise_graph
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.workload.graph import OperatorGraph, side_by_side

_LEAST_EFFICIENCY = 0.3
"""No memory that streams gets less of its nominal bandwidth."""


@dataclass(frozen=True)
class MeasuredVector:
    """One vector operator, as `phaze_opt.estimator.single.estimate_vector` names it, and its time.

    Raises
    ------
    InputError
        If the operator is unknown, or a size is not a positive whole number.
    """

    kind: str
    rows: int
    columns: int
    latency_s: float

    def __post_init__(self) -> None:
        elementwise_graph(self.kind, self.rows, self.columns)

    @property
    def graph(self) -> OperatorGraph:
        """The operator by itself."""
        return elementwise_graph(self.kind, self.rows, self.columns)


def fit_vector(rows: Sequence[MeasuredVector], chip: Accelerator) -> Fit:
    """Fit the efficiency of a chip's HBM to measured vector operators.

    Parameters
    ----------
    rows
        See `streaming_rows` for those that are used.
    chip
        With the stated efficiency.

    Raises
    ------
    InputError
        If there is no row.
    """
    used = streaming_rows(rows, chip)
    graph = side_by_side(tuple([row.graph for row in used]))

    def predict(values: Mapping[str, float]) -> FloatArray:
        changed = replace(chip, calibration=replace(chip.calibration, **values))
        return estimate_isolated(graph, changed, chip.num_vc).latency_s

    stated = chip.calibration.hbm_efficiency
    constant = Constant("hbm_efficiency", stated, _LEAST_EFFICIENCY, 1.0, prior=False)
    return fit([constant], predict, np.array([row.latency_s for row in used]))


def streaming_rows(rows: Sequence[MeasuredVector], chip: Accelerator) -> list[MeasuredVector]:
    """Return the rows that constants are fitted to: those that the global buffer cannot keep.

    A smaller operand may still lie there from the repetition before. All rows are used where none
    is larger.
    """
    large = [row for row in rows if sum(row.graph.moved_bytes) > chip.glb_bytes]
    return large or list(rows)

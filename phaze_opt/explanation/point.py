"""One point as a value: all that `evaluate` takes, so that what-if questions can change it."""

from __future__ import annotations

from dataclasses import dataclass

from phaze_opt.costed_point import CostedPoint, Placing, cost_point
from phaze_opt.evaluation import Evaluation, place_point
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.layer_passes import ScheduleCache
from phaze_opt.network.cluster import Cluster
from phaze_opt.training import Training
from phaze_opt.workload.fusion import FusionMode
from phaze_opt.workload.graph import Workload


@dataclass(frozen=True)
class Point:
    """The arguments of `phaze_opt.evaluation.evaluate`; see there."""

    workload: Workload
    accelerator: Accelerator
    cluster: Cluster
    training: Training
    placement: Placing = "solve"
    fusion: FusionMode | None = None
    power_limit_w: float | None = None
    lane_rate: float = 1.0

    def costed(self, cache: ScheduleCache) -> CostedPoint:
        """Estimate and schedule the layers."""
        return cost_point(
            self.workload,
            self.accelerator,
            self.cluster,
            self.training,
            self.placement,
            fusion=self.fusion,
            cache=cache,
            lane_rate=self.lane_rate,
        )

    def placed(self, costed: CostedPoint) -> Evaluation:
        """Place the layers."""
        return place_point(costed, self.power_limit_w)

    def evaluate(self, cache: ScheduleCache) -> Evaluation:
        """Do both."""
        return self.placed(self.costed(cache))

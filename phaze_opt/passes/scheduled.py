"""The passes of a layer as they run on one accelerator: estimated and scheduled."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

import numpy as np

from phaze_opt.arrays import BoolArray, FloatArray, IntArray
from phaze_opt.choices import SolveMethod
from phaze_opt.estimator.estimate import RESOURCES, GraphEstimate, ModeEstimate
from phaze_opt.estimator.traffic import ENERGY_LEVELS
from phaze_opt.hardware.accelerator import Accelerator
from phaze_opt.on_demand import cached_property
from phaze_opt.passes.estimates import EstimatedLayers, EstimatedPass
from phaze_opt.passes.graphs import again_of
from phaze_opt.passes.layer_cost import PassCost
from phaze_opt.passes.residency import with_hbm_bytes
from phaze_opt.passes.totals import BoundOperators, totals_in_modes
from phaze_opt.scheduling.cached_reads import schedule_with_cache
from phaze_opt.scheduling.schedule_problem import (
    Schedule,
    ScheduleProblem,
    ScheduleStatus,
    check_problem,
    with_bound,
)
from phaze_opt.scheduling.solve_schedule import solve_columns, with_residency
from phaze_opt.training import Training
from phaze_opt.workload.graph import OperatorGraph

ScheduleCache = MutableMapping[str, Schedule]


@dataclass(frozen=True)
class ScheduleProof:
    """What is known about a schedule: proven or not, the bound, the relative gap, and by what.

    The method is a `phaze_opt.scheduling.schedule_problem.ScheduleMethod`; empty in an evaluation
    that an older program stored.
    """

    status: ScheduleStatus
    bound_s: float
    gap: float
    method: str = ""


@dataclass(frozen=True, eq=False)
class ScheduledPass:
    """One graph of a layer as it runs: fused, estimated in both modes, scheduled.

    Attributes
    ----------
    estimated
        What runs.
    schedule
        How it runs.
    on_all : (operators,)
        Whether each operator runs on all cores; not looked at where tensors stay on the chip.
    """

    estimated: EstimatedPass
    schedule: Schedule
    on_all: BoolArray

    @property
    def graph(self) -> OperatorGraph:
        """The operators."""
        return self.estimated.graph

    @property
    def estimates(self) -> GraphEstimate:
        """Their two modes."""
        return self.estimated.estimates

    @property
    def problem(self) -> ScheduleProblem:
        """What was scheduled."""
        return self.estimated.problem

    @property
    def accelerator(self) -> Accelerator:
        """What it runs on."""
        return self.estimated.accelerator

    @cached_property
    def chosen(self) -> ModeEstimate:
        """Every operator in the mode that the schedule chose, with what then flows from the HBM."""
        if self.schedule.residency is not None:
            flow_bytes = np.array(self.schedule.residency.hbm_bytes)
            mode, groups = self.estimates.all_cores, self.schedule.residency.groups
            if groups:
                assert self.estimated.tiled is not None
                mode = self.estimated.tiled.in_groups(groups)
            return with_hbm_bytes(mode, flow_bytes, self.accelerator)
        pairs = zip(
            self.estimates.all_cores.arrays(), self.estimates.one_core.arrays(), strict=True
        )
        return ModeEstimate(
            *(
                np.where(self.on_all.reshape(-1, *[1] * (a.ndim - 1)), a, on_one)
                for a, on_one in pairs
            )
        )

    @cached_property
    def totals(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Operators and seconds by the resource that binds, and energy by level, as they run."""
        if self.schedule.residency is not None:
            one_core = all_cores = BoundOperators.of(self.chosen)
        else:
            one_core, all_cores = self.estimated.bound
        return totals_in_modes(self.on_all, len(RESOURCES), one_core, all_cores)

    @property
    def proof(self) -> ScheduleProof:
        """What is known about the makespan."""
        schedule = self.schedule
        return ScheduleProof(schedule.status, schedule.bound_s, schedule.gap, schedule.method)


@dataclass(frozen=True, eq=False)
class ScheduledLayer:
    """The passes of one distinct layer, scheduled.

    Attributes
    ----------
    passes
        By name, see `phaze_opt.passes.graphs.graphs_of`.
    again
        Which of them runs again before the backward; ``None`` for none.
    """

    passes: Mapping[str, ScheduledPass]
    again: str | None

    @property
    def forward(self) -> ScheduledPass:
        """The forward."""
        return self.passes["forward"]

    @property
    def backward(self) -> ScheduledPass:
        """The backward."""
        return self.passes["backward"]

    @property
    def recompute(self) -> ScheduledPass | None:
        """What runs again before the backward."""
        return None if self.again is None else self.passes[self.again]

    @property
    def costs(self) -> dict[str, PassCost]:
        """What the passes take, by name."""
        own = self.passes.items()
        return {
            name: PassCost(scheduled.schedule.makespan_s, scheduled.estimated.link_s)
            for name, scheduled in own
        }

    def all(self) -> tuple[ScheduledPass, ...]:
        """Return those that run, as often as each does."""
        again = self.recompute
        return (self.forward, self.backward, *(() if again is None else (again,)))

    @cached_property
    def _totals(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """The sums of `ScheduledPass.totals`."""
        operators, seconds, energy_j = self.forward.totals
        for scheduled in self.all()[1:]:
            more_operators, more_seconds, more_j = scheduled.totals
            operators, seconds = operators + more_operators, seconds + more_seconds
            energy_j = energy_j + more_j
        return operators, seconds, energy_j

    @property
    def bound_by_s(self) -> dict[str, float]:
        """Seconds of the operators by the resource that binds each."""
        operators, seconds, _ = self._totals
        rows = zip(RESOURCES, seconds.tolist(), operators.tolist(), strict=True)
        return {name: s for name, s, n in sorted(rows) if n}

    @property
    def energy_by_level_j(self) -> dict[str, float]:
        """Energy of the operators in the modes that the schedules chose."""
        *_, energy_j = self._totals
        return dict(zip(ENERGY_LEVELS, energy_j.tolist(), strict=True))


def run_layers(
    layers: EstimatedLayers, training: Training, cache: ScheduleCache | None
) -> tuple[ScheduledLayer, ...]:
    """Schedule all passes of all layers."""
    method: SolveMethod = "auto" if layers.chip.prove else "branch-and-bound"

    def run(of_layer: list[EstimatedPass]) -> ScheduledLayer:
        passes = {
            estimated.direction: _run_pass(estimated, cache, method) for estimated in of_layer
        }
        return ScheduledLayer(passes, again_of(training))

    return tuple(map(run, layers.passes))


def _run_pass(
    estimated: EstimatedPass, cache: ScheduleCache | None, method: SolveMethod
) -> ScheduledPass:
    """Schedule one pass; where collectives may be chunked or whole, in the way that is shorter."""
    chunked = _run_as_estimated(estimated, cache, method)
    if estimated.whole is None:
        return chunked
    whole = _run_as_estimated(estimated.whole, cache, method)
    best, other = (whole, chunked)
    if chunked.schedule.makespan_s <= whole.schedule.makespan_s:
        best, other = chunked, whole
    return replace(best, schedule=with_bound(best.schedule, other.schedule.bound_s))


def _run_as_estimated(
    estimated: EstimatedPass, cache: ScheduleCache | None, method: SolveMethod
) -> ScheduledPass:
    """Schedule one pass with its collectives as they are estimated."""
    columns = estimated.columns
    if estimated.may_be_endless:
        check_problem(estimated.problem)  # says which operator takes endless time
    schedule, on_all = solve_columns(columns, cache, method=method)
    if estimated.cached_reads is not None:
        schedule = schedule_with_cache(columns, estimated.cached_reads, schedule)
    elif estimated.residency is not None:
        schedule = with_residency(estimated.problem, schedule, cache, method)
    return ScheduledPass(estimated, schedule, on_all)

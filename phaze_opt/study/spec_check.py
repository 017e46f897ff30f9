"""Size of the space, feasible share and cost of a spec, before a study is created."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from phaze_opt.bounds.space_size import SpaceSize, space_size
from phaze_opt.errors import InputError
from phaze_opt.evaluation import evaluate
from phaze_opt.passes.scheduled import ScheduleCache
from phaze_opt.spec.axis_names import kind_of
from phaze_opt.spec.constraints import chip_violation, run_violation
from phaze_opt.spec.designs import Design
from phaze_opt.spec.freezing import freeze
from phaze_opt.spec.frozen import ResolvedStudy
from phaze_opt.spec.run_inputs import RunInputs, run_inputs
from phaze_opt.spec.space import MOST_CHIPS, DesignPoint, numbered_point
from phaze_opt.spec.study_spec import StudySpec
from phaze_opt.study.baselines import outside_space
from phaze_opt.workload.graph import Workload

SAMPLED_CHIPS = 1_000
"""Number of sampled points whose chip and area are checked."""

EVALUATED_POINTS = 16
EVALUATION_S = 10.0
"""Number of points within the area to evaluate, and seconds after which no further one begins."""


@dataclass(frozen=True)
class SpecCheck:
    """A valid spec with the size of its space, and its feasible share.

    Attributes
    ----------
    points
        Number of points of the space, including points above the area limit.
    sampled, within_area
        Number of points drawn at random, and of those whose chip is within the area.
    evaluated, feasible
        Number of points within the area that were evaluated, and of those that keep every limit.
    seconds_per_point
        Time of an evaluation with an empty cache, of all workloads and solved options together;
        ``None`` if no drawn point is within the area.
    outside
        For each baseline that no trial can find: a sentence about a value outside the space.
    size
        Size of the part of the space within the limits of the chip; ``None`` if the space is too
        large to list.
    """

    resolved: ResolvedStudy
    points: int
    sampled: int
    within_area: int
    evaluated: int
    feasible: int
    seconds_per_point: float | None
    outside: Mapping[str, str]
    size: SpaceSize | None

    @property
    def within_limits(self) -> int | None:
        """Number of points whose chip is within the limits; ``None`` if they are not listed."""
        return None if self.size is None else self.size.points

    @property
    def boxes_s(self) -> float | None:
        """Estimated seconds to bound boxes of chips on one core; ``None`` for other samplers."""
        if self.size is None or self.resolved.spec.sampler != "bound":
            return None
        return self.size.boxes_s

    @property
    def trials_s(self) -> float | None:
        """Estimated seconds of all trials of the study on one core; with ``bound`` at most.

        A point above the area takes no time. The sampler ``bound`` proposes none.
        """
        if self.seconds_per_point is None:
            return None
        spec = self.resolved.spec
        share = 1.0 if spec.sampler == "bound" else self.within_area / self.sampled
        return spec.search.trials * share * self.seconds_per_point

    @property
    def feasible_share(self) -> float | None:
        """Estimated share of feasible points, from the samples."""
        if self.within_area == 0:
            return 0.0
        if self.evaluated == 0:
            return None
        return self.within_area / self.sampled * self.feasible / self.evaluated


def check_spec(spec: StudySpec) -> SpecCheck:
    """Freeze a spec as `phaze_opt.study.study.create_study` does, and evaluate some of its points.

    Raises
    ------
    InputError
        If the creation of the study would refuse the spec.
    """
    resolved, workloads = freeze(spec)
    within = [design for point in _sample(spec) if (design := _within(resolved, point)) is not None]
    started_s, evaluated, feasible = time.monotonic(), 0, 0
    for design in within[:EVALUATED_POINTS]:
        feasible += _is_feasible(resolved, workloads, design)
        evaluated += 1
        if time.monotonic() - started_s > EVALUATION_S:
            break
    took_s = time.monotonic() - started_s
    reasons = {baseline.name: outside_space(resolved, baseline) for baseline in resolved.baselines}
    return SpecCheck(
        resolved=resolved,
        points=spec.space.points,
        sampled=min(SAMPLED_CHIPS, spec.space.points),
        within_area=len(within),
        evaluated=evaluated,
        feasible=feasible,
        seconds_per_point=took_s / evaluated if evaluated else None,
        outside={name: reason for name, reason in reasons.items() if reason is not None},
        size=_size(resolved, workloads),
    )


def _size(resolved: ResolvedStudy, workloads: Sequence[Workload]) -> SpaceSize | None:
    """Return the size of a space; ``None`` if it is too large to list."""
    searched = resolved.spec.space.searched.items()
    chips = math.prod(len(axis.values) for name, axis in searched if kind_of(name) == "chip")
    return space_size(resolved, workloads) if chips <= MOST_CHIPS else None


def _sample(spec: StudySpec) -> list[DesignPoint]:
    """Draw different points; a small space gives all its points."""
    size = spec.space.points
    if size <= SAMPLED_CHIPS:
        numbers = range(size)
        return [numbered_point(spec.space, number) for number in numbers]
    generator = np.random.default_rng(spec.search.seed)
    drawn: dict[int, None] = {}
    while len(drawn) < SAMPLED_CHIPS:
        # Two halves of a number, since a space may have more than 2^64 points.
        high, low = generator.integers(2**62, size=2).tolist()
        drawn[(high * 2**62 + low) % size] = None
    return [numbered_point(spec.space, number) for number in drawn]


def _within(resolved: ResolvedStudy, point: DesignPoint) -> Design | None:
    """Return the design of a point; ``None`` if it cannot exist or violates a limit of the chip."""
    try:
        design = resolved.design(point)
    except InputError:
        return None
    return design if chip_violation(resolved, design.accelerator, design.cluster) is None else None


def _is_feasible(resolved: ResolvedStudy, workloads: tuple[Workload, ...], design: Design) -> bool:
    """Whether every workload keeps every limit under one of the solved options."""
    cache: ScheduleCache = {}
    try:
        # All options are evaluated, as in a trial, since their time is measured.
        kept = [
            [
                _keeps_limits(resolved, workloads, inputs, cache)
                for inputs in run_inputs(resolved, run, design)
            ]
            for run in range(len(resolved.spec.runs))
        ]
        return all(map(any, kept))
    except InputError:
        # As in the objective: options that exclude each other, or a chip that no tile fits.
        return False


def _keeps_limits(
    resolved: ResolvedStudy,
    workloads: tuple[Workload, ...],
    inputs: RunInputs,
    cache: ScheduleCache,
) -> bool:
    """Whether a workload keeps every limit under the options of the inputs."""
    evaluation = evaluate(
        workloads[inputs.capture],
        inputs.accelerator,
        inputs.cluster,
        inputs.training,
        resolved.spec.placement,
        cache=cache,
    )
    return run_violation(resolved.spec.constraints, evaluation) is None
